"""Process of one training of the benchmark `fbam-length`: reads settings as JSON, prints held-out losses."""

import json
import sys

import torch

from shoal.fbam import evaluate_stream
from shoal.fbam.training.evaluation import CHUNK, draw_parts
from shoal.fbam.training.run_directory import open_source
from shoal.fbam.training.settings import TrainSettings
from shoal.fbam.training.trainer import Trainer

EVALUATION_SEED = 1000


def main() -> None:
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    settings = TrainSettings.model_validate(told["settings"])
    trainer = Trainer(settings, open_source(settings))
    for _ in range(settings.steps):
        trainer.step()
    heldout = open_source(settings, "heldout")

    def loss_at(length: int, sequences: int) -> float:
        parts = [
            evaluate_stream(trainer.model, part, CHUNK)
            for part in draw_parts(heldout, length, sequences, EVALUATION_SEED)
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
