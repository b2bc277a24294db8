"""Accuracy of a model by length, on sequences that no training step draws, beside what shortcuts reach."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from shoal.fbam.action_model import ActionModel
from shoal.fbam.frames import IGNORED, Stream
from shoal.fbam.gradient import evaluate_stream
from shoal.fbam.tasks import Source, Task, equivalent_window

EVALUATION_STREAM = 1  # of random numbers, beside TRAIN_STREAM
BATCH = 256
CHUNK = 64


@dataclass(frozen=True, slots=True)
class LastFrame:
    """A stream that is scored at its last frame alone."""

    stream: Stream

    @property
    def length(self) -> int:
        return self.stream.length

    @property
    def batch(self) -> int:
        return self.stream.batch

    def frames(self, begin: int, end: int) -> torch.Tensor:
        return self.stream.frames(begin, end)

    def targets(self, begin: int, end: int) -> torch.Tensor:
        targets_BT = self.stream.targets(begin, end).clone()
        targets_BT[:, : targets_BT.shape[1] - (end == self.length)] = IGNORED
        return targets_BT


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Accuracy at the last frame of sequences of one length."""

    length: int
    frames: int
    """Of a sequence of that length."""
    accuracy: float
    floor: float
    """Of a reader that sees no frame at all."""
    window: int
    """Smallest number of last frames with which a reader could be as accurate, within sampling error."""


def draw_parts(source: Source, length: int, sequences: int, seed: int) -> Iterator[Stream]:
    """Sequences for evaluation, in batches; they depend on the arguments alone."""
    for part, begin in enumerate(range(0, sequences, BATCH)):
        rng = np.random.default_rng([seed, EVALUATION_STREAM, length, part])
        yield source.draw(rng, min(BATCH, sequences - begin), length)


def accuracy_at(model: ActionModel, source: Source, length: int, sequences: int, seed: int = 0) -> float:
    """The share of sequences whose last frame gets the right action."""
    right = 0.0
    for stream in draw_parts(source, length, sequences, seed):
        right += evaluate_stream(model, LastFrame(stream), CHUNK).correct * stream.batch
    return right / sequences


def report_length(model: ActionModel, task: Task, length: int, sequences: int, seed: int = 0) -> LengthReport:
    """Accuracy with its floor and its equivalent window, without which it says little about memory."""
    accuracy = accuracy_at(model, task, length, sequences, seed)
    window = equivalent_window(task, length, accuracy, sequences)
    return LengthReport(length, task.frames(length), accuracy, task.window_floor(length, 0), window)
