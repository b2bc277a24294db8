"""One training step as a function of settings, weights and step number: nothing else decides what it does.

Sequences of step k are drawn from a random generator seeded by (seed, k). A run that was killed and goes on from a
checkpoint therefore sees what the undisturbed run sees, and has the same losses.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from shoal.errors import FbamError
from shoal.fbam.action_model import ActionModel, build_model
from shoal.fbam.gradient import Loss, streamed_gradient, truncated_gradient
from shoal.fbam.tasks.interface import Source
from shoal.fbam.training.settings import TrainSettings

TRAIN_STREAM = 0  # of random numbers; evaluation draws from others


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did."""

    step: int
    length: int
    loss: Loss
    gradient_norm: float
    """Before clipping."""


class Trainer:
    """A model, its optimizer and how many steps they have made."""

    def __init__(self, settings: TrainSettings, source: Source) -> None:
        if (source.shape, source.actions) != (settings.model.shape, settings.model.actions):
            raise FbamError(
                f"source with {source.actions} actions and frames of {source.shape}: the model has "
                f"{settings.model.actions} and {settings.model.shape}; give the model the source's"
            )
        self.settings, self.source = settings, source
        self.model: ActionModel = build_model(settings.model, settings.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.99)
        )
        self.steps_done = 0

    def step(self) -> StepReport:
        """Draws sequences, adds their gradient, clips it and updates the weights."""
        settings, step = self.settings, self.steps_done
        rng = np.random.default_rng([settings.seed, TRAIN_STREAM, step])
        length = int(rng.integers(settings.min_length, settings.longest_at(step) + 1))
        stream = self.source.draw(rng, settings.batch, length)
        self.optimizer.zero_grad(set_to_none=True)
        gradient = streamed_gradient if settings.method == "exact" else truncated_gradient
        loss = gradient(self.model, stream, settings.chunk)
        norm = float(clip_grad_norm_(self.model.parameters(), settings.clip))
        if not np.isfinite(norm):
            raise FbamError(f"step {step}: the gradient's norm is {norm}; start again with a smaller --lr")
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(step)
        self.optimizer.step()
        self.steps_done += 1
        return StepReport(step, length, loss, norm)

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, as tensors and numbers."""
        return {
            "steps_done": self.steps_done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps_done = int(state["steps_done"])
