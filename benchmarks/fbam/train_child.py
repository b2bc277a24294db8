"""Process of one training of the benchmark `fbam`: a job goes in, accuracies by length and the last loss come out."""

import json
import sys

from benchmarks.fbam.child import train_as_told
from shoal.fbam.training.evaluation import accuracy_at


def main() -> None:
    trained = train_as_told()
    model, source, told = trained.trainer.model, trained.trainer.source, trained.told
    found = {str(length): accuracy_at(model, source, length, told["sequences"]) for length in told["lengths"]}
    sys.stdout.write(json.dumps({**found, "loss": trained.last_loss}))


if __name__ == "__main__":
    main()
