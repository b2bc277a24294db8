"""What the processes of trainings share: one job as JSON on stdin, one thread, a model that is trained."""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from shoal.fbam.training.run_directory import open_source
from shoal.fbam.training.settings import TrainSettings
from shoal.fbam.training.trainer import Trainer
from shoal.files import whole_file

LINE_S = 10.0  # between two lines of progress, each with a checkpoint
LAST_STEPS = 100  # that the last loss is a mean over


@dataclass(frozen=True, slots=True)
class Trained:
    """A model after its last step, and what the job asks of it."""

    trainer: Trainer
    told: dict[str, Any]
    last_loss: float
    """Of training, over all trained lengths."""


def train_as_told() -> Trained:
    """Reads a job and trains by its settings, from its checkpoint on if it was stopped before."""
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    settings = TrainSettings.model_validate(told["settings"])
    trainer = Trainer(settings, open_source(settings))
    checkpoint = Path(told["checkpoint"]) if told.get("checkpoint") else None
    losses = _restore(trainer, checkpoint)
    wrote = time.monotonic()
    while trainer.steps_done < settings.steps:
        losses.append(trainer.step().loss.mean)
        if time.monotonic() - wrote >= LINE_S:
            _save(trainer, losses, checkpoint)
            sys.stderr.write(f"step {trainer.steps_done} of {settings.steps}: loss {fmean(losses):.4f}\n")
            sys.stderr.flush()
            wrote = time.monotonic()
    return Trained(trainer, told, fmean(losses))


def _save(trainer: Trainer, losses: Iterable[float], checkpoint: Path | None) -> None:
    if checkpoint is not None:
        with whole_file(checkpoint) as staging, staging.open("xb") as file:
            torch.save({"trainer": trainer.state(), "losses": list(losses)}, file)


def _restore(trainer: Trainer, checkpoint: Path | None) -> deque[float]:
    """The last losses, with the trainer at the step that they end at."""
    if checkpoint is None or not checkpoint.is_file():
        return deque(maxlen=LAST_STEPS)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    trainer.restore(state["trainer"])
    return deque(state["losses"], maxlen=LAST_STEPS)
