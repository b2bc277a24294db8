"""The orders that rank 0 of a trainer gives, and the ranks that carry them out: same functions, same order, every rank.

Rank 0 runs the loop of `roles/trainer.py`. What all ranks do together it orders first; in a world of one an order is
told to nobody.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import torch
from torch import Tensor

from shoal.config import RunConfig
from shoal.devices import DTYPES
from shoal.train.adapter_versions import AdapterVersions
from shoal.train.batch import Group
from shoal.train.checkpoint import Progress, load_checkpoint, snapshot, write_checkpoint
from shoal.train.learner import Learner
from shoal.train.publishing import gathered, write_version
from shoal.train.step import StepResult, train_step


class Order(IntEnum):
    """What all ranks do next."""

    END = 0
    LOAD = 1
    TRAIN = 2
    PUBLISH = 3
    SAVE = 4
    GATHER = 5


@dataclass(slots=True)
class Ranks:
    """All ranks of a trainer, as rank 0 commands them and as every rank obeys."""

    learner: Learner
    config: RunConfig
    checkpoints: Path
    adapters: AdapterVersions | None = None
    """Writes versions on rank 0, where adapters are trained instead of all weights."""
    writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    writing: Future[None] | None = None

    def load(self) -> tuple[Progress | None, list[str]]:
        """Restores the newest whole checkpoint."""
        self._order(Order.LOAD)
        return load_checkpoint(self.checkpoints, self.learner)

    def train(self, groups: list[Group], step: int) -> StepResult:
        self._order(Order.TRAIN, step)
        return train_step(self.learner, groups, self.config, step)

    def publish(self, folder: Path) -> Callable[[], None]:
        """Writes the weight files of a version, each rank its own; what it gives does the rest, in any thread."""
        if self.adapters is not None:
            return self.adapters.writer(folder, self.gather())
        self._order(Order.PUBLISH)
        self._publish(self.learner.world.share_text(str(folder)))
        return lambda: None

    def save(self, progress: Progress) -> None:
        """Copies the state of every rank, and writes it while training goes on."""
        self._order(Order.SAVE)
        self._save(progress)

    def gather(self) -> dict[str, Tensor]:
        """All that is trained, whole, in the memory of rank 0."""
        self._order(Order.GATHER)
        return gathered(self.learner.policy.trained_weights(), self.learner.world)

    def end(self) -> None:
        """Waits until the last checkpoint is whole, and lets the other ranks go."""
        self._order(Order.END)
        self.finish_writing()

    def finish_writing(self) -> None:
        """Waits until the last checkpoint is whole; what went wrong with it is raised here."""
        if self.writing is not None:
            self.writing.result()
            self.writing = None

    def follow(self) -> None:
        """Carries out rank 0's orders until the last."""
        world = self.learner.world
        while True:
            order, step = world.share(None).tolist()
            match Order(order):
                case Order.LOAD:
                    load_checkpoint(self.checkpoints, self.learner)
                case Order.TRAIN:
                    train_step(self.learner, None, self.config, step)
                case Order.PUBLISH:
                    self._publish(world.share_text(None))
                case Order.SAVE:
                    self._save(None)
                case Order.GATHER:
                    gathered(self.learner.policy.trained_weights(), world)
                case Order.END:
                    self.finish_writing()
                    return

    def _order(self, order: Order, step: int = 0) -> None:
        self.learner.world.share(torch.tensor([order, step]))

    def _publish(self, folder: str) -> None:
        dtype = DTYPES[self.config.model.dtype]
        write_version(Path(folder), self.learner.policy.weights(), dtype, self.learner.world)

    def _save(self, progress: Progress | None) -> None:
        self.finish_writing()
        taken, keep = snapshot(self.learner), self.config.keep.checkpoints
        self.writing = self.writer.submit(write_checkpoint, self.checkpoints, taken, self.learner.world, progress, keep)
