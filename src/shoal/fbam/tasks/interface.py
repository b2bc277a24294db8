"""What a task is: sequences to draw, and the accuracy that a reader reaches without remembering them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from shoal.fbam.frames import CHANNELS, FrameShape, Stream

FOREGROUND = 7  # white on black, for frames whose colours mean nothing


class Source(Protocol):
    """Where sequences come from."""

    @property
    def shape(self) -> FrameShape:
        """Size of its frames."""

    @property
    def actions(self) -> int:
        """How many actions a frame can ask for."""

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Stream:
        """Sequences that depend on the random generator's state alone."""


class Task(Source, Protocol):
    """A synthetic source with rules, scored at the last frame of a sequence."""

    @property
    def name(self) -> str:
        """As in `shoal fbam train --task NAME`."""

    def frames(self, length: int) -> int:
        """How many frames a sequence of this length has: a window of so many has seen all of it."""

    def window_floor(self, length: int, window: int) -> float:
        """The best accuracy of a reader that knows all rules and the length, but sees the last `window` frames alone.

        An accuracy at or below this figure shows no memory that is longer than the window.
        """


def text_frames(code_points_BTW: np.ndarray) -> torch.Tensor:
    """Frames of one row of text, white on black: batch x frames x CHANNELS x 1 x columns."""
    batch, frames, columns = code_points_BTW.shape
    cells = np.zeros((batch, frames, CHANNELS, 1, columns), np.uint8)
    cells[:, :, 0, 0] = code_points_BTW
    cells[:, :, 1] = FOREGROUND
    return torch.from_numpy(cells)


def code_points(text: Sequence[str]) -> np.ndarray:
    """A table from number to code point."""
    return np.array([ord(char) for char in text], np.uint8)
