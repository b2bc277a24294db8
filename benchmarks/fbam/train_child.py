"""Process of one training of the benchmark `fbam`: reads a job as JSON, prints accuracies by length."""

import json
import sys

from benchmarks.fbam.child import train_as_told
from shoal.fbam.training.evaluation import accuracy_at


def main() -> None:
    trainer, _, told = train_as_told()
    found = {
        length: accuracy_at(trainer.model, trainer.source, length, told["sequences"]) for length in told["lengths"]
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
