"""Process of one training of the benchmark `fbam`: reads a job as JSON, prints accuracies by length."""

import json
import sys

import torch

from shoal.fbam.training.evaluation import accuracy_at
from shoal.fbam.training.run_directory import open_source
from shoal.fbam.training.settings import TrainSettings
from shoal.fbam.training.trainer import Trainer


def main() -> None:
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    settings = TrainSettings.model_validate(told["settings"])
    trainer = Trainer(settings, open_source(settings))
    for _ in range(settings.steps):
        trainer.step()
    found = {
        length: accuracy_at(trainer.model, trainer.source, length, told["sequences"]) for length in told["lengths"]
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
