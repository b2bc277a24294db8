"""What the processes of trainings share: one job as JSON on stdin, one thread, a model that is trained."""

import json
import sys
from typing import Any

import torch

from shoal.fbam.training.run_directory import open_source
from shoal.fbam.training.settings import TrainSettings
from shoal.fbam.training.trainer import Trainer


def train_as_told() -> tuple[Trainer, TrainSettings, dict[str, Any]]:
    """Reads a job and trains by its settings; with it comes what else the job says."""
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    settings = TrainSettings.model_validate(told["settings"])
    trainer = Trainer(settings, open_source(settings))
    for _ in range(settings.steps):
        trainer.step()
    return trainer, settings, told
