"""Process of one training of the benchmark `fbam-length`: reads settings as JSON, prints held-out losses."""

import json
import sys

from benchmarks.fbam.child import train_as_told
from shoal.fbam import evaluate_stream
from shoal.fbam.training.evaluation import CHUNK, draw_parts
from shoal.fbam.training.run_directory import open_source

EVALUATION_SEED = 1000


def main() -> None:
    trained = train_as_told()
    model, settings, told = trained.trainer.model, trained.trainer.settings, trained.told
    heldout = open_source(settings, "heldout")

    def loss_at(length: int, sequences: int) -> float:
        parts = [
            evaluate_stream(model, part, CHUNK) for part in draw_parts(heldout, length, sequences, EVALUATION_SEED)
        ]
        return sum(part.mean * part.scored for part in parts) / sum(part.scored for part in parts)

    own, longest = settings.max_length, told["longest"]
    found = {
        "raw": loss_at(own, told["sequences"] * longest // own),
        "position": loss_at(longest, told["sequences"]),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
