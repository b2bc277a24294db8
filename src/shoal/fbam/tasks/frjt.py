"""Forward-Referencing Jumps: run a program whose jumps depend on a register, and say where it halts.

One frame per block, after a first frame with the register's start; scored at the last frame. Random programs forget:
runs from both registers soon meet, so the last blocks tell most of the answer. `frjt-live` excludes that.
"""

from functools import cached_property

import numpy as np
import torch

from shoal.errors import FbamError
from shoal.fbam.frames import IGNORED, FrameShape, TensorStream
from shoal.fbam.tasks.interface import code_points, text_frames
from shoal.fbam.tasks.jumps import Jumps
from shoal.fbam.tasks.window import SAMPLES, window_accuracy

START = ">"
INIT, FLIP = code_points("-+"), code_points("kf")  # keep, flip
# Symbols say in which column they are, so that a head which averages its cells can tell the two offsets apart.
OFFSET0, OFFSET1 = code_points("123456789"), code_points("abcdefghi")


class Frjt:
    """Forward-referencing jumps with offsets up to `max_offset`; a sequence of length n has n blocks, n + 1 frames."""

    name = "frjt"
    shape = FrameShape(rows=1, columns=3)
    actions = 2

    def __init__(self, max_offset: int = 4) -> None:
        if not 2 <= max_offset <= len(OFFSET0):
            raise FbamError(f"{self.name}: offsets up to {max_offset}; give 2 to {len(OFFSET0)}")
        self.jumps = Jumps(max_offset)

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> TensorStream:
        init_B = rng.integers(2, size=batch)
        return self.stream(init_B, self.draw_blocks(rng, batch, length))

    def draw_blocks(self, rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
        """Numbers of blocks, batch x length, drawn without a look at the register's start."""
        blocks_BT = np.empty((batch, length), np.int64)
        for at in range(length):
            sums_I = np.cumsum(self.jumps.block_weights(length - 1 - at))
            blocks_BT[:, at] = np.searchsorted(sums_I, rng.random(batch) * sums_I[-1], side="right")
        return blocks_BT

    def stream(self, init_B: np.ndarray, blocks_BT: np.ndarray) -> TensorStream:
        """The frames of programs, with where they halt as the action of the last one."""
        batch, length = blocks_BT.shape
        cells = np.full((batch, length + 1, 3), ord(START), np.uint8)
        cells[:, 0, 2] = INIT[init_B]
        flip, offset0, offset1 = self.jumps.parts(blocks_BT)
        cells[:, 1:] = np.stack([FLIP[flip], OFFSET0[offset0 - 1], OFFSET1[offset1 - 1]], axis=2)
        targets = np.full((batch, length + 1), IGNORED, np.int64)
        targets[:, -1] = self.halts(init_B, blocks_BT)
        return TensorStream(text_frames(cells), torch.from_numpy(targets))

    def halts(self, init_B: np.ndarray, blocks_BT: np.ndarray) -> np.ndarray:
        """0 for a program that halts at its depth, 1 for one that halts one block later."""
        state_B = init_B * self.jumps.max_offset
        for block_B in blocks_BT.T:
            state_B = self.jumps.next_state_IS[block_B, state_B]
        ends: np.ndarray = self.jumps.halt_class_S[state_B]
        return ends

    def frames(self, length: int) -> int:
        return length + 1

    def window_floor(self, length: int, window: int) -> float:
        if window > length:
            return 1.0  # the register's start is seen too
        if (length, window) not in self._floors:
            # A block's distribution depends on how many are behind it: the last blocks are those of a short program.
            seen_NW = self.draw_blocks(np.random.default_rng(0), SAMPLES, window)
            prior_S = self.jumps.state_distribution(length - window, length)
            floor = window_accuracy(prior_S, self.jumps.next_state_IS, seen_NW, self.jumps.halt_class_S)
            self._floors[length, window] = floor
        return self._floors[length, window]

    @cached_property
    def _floors(self) -> dict[tuple[int, int], float]:
        return {}
