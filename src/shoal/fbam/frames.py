"""Frames and streams: screens of terminal cells, read chunk by chunk, so that a stream is never in memory whole."""

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

CHANNELS = 3  # of a cell: code point, foreground colour, background colour
IGNORED = -100  # the target of a frame whose action is not trained or scored; what torch's cross-entropy ignores


class FrameShape(BaseModel):
    """Size of a screen, and how many code points and colours its cells can have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(ge=1, le=512)
    columns: int = Field(ge=1, le=512)
    code_points: int = Field(default=256, ge=1, le=256)
    colours: int = Field(default=16, ge=1, le=256)


class Stream(Protocol):
    """A batch of frame sequences of one length, with the action to take after each frame.

    Reading is repeatable: the same range gives the same values each time, in any order. The exact streaming gradient
    reads every chunk twice and would otherwise be the gradient of two different losses.
    """

    @property
    def length(self) -> int:
        """Frames of each sequence."""

    @property
    def batch(self) -> int:
        """Sequences side by side."""

    def frames(self, begin: int, end: int) -> Tensor:
        """Frames begin .. end - 1 of every sequence: uint8, batch x frames x CHANNELS x rows x columns."""

    def targets(self, begin: int, end: int) -> Tensor:
        """Their actions: int64, batch x frames; IGNORED where the action does not count."""


@dataclass(frozen=True, slots=True)
class TensorStream:
    """A stream that is short enough to be in memory whole."""

    frames_BTCRW: Tensor
    targets_BT: Tensor

    @property
    def length(self) -> int:
        return self.targets_BT.shape[1]

    @property
    def batch(self) -> int:
        return self.targets_BT.shape[0]

    def frames(self, begin: int, end: int) -> Tensor:
        return self.frames_BTCRW[:, begin:end]

    def targets(self, begin: int, end: int) -> Tensor:
        return self.targets_BT[:, begin:end]
