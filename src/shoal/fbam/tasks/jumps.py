"""The automaton of forward-referencing jumps: a register bit, and how many blocks are still jumped over.

A block has a flip bit and two offsets. If it is not jumped over, reg ^= flip and pc += offset[reg]. With offsets of at
most J this is a finite automaton of 2 J states: what is remembered between blocks is (reg, blocks to skip).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.fbam.tasks.window import next_distribution

OFFSET_DECAY = 2 / 3  # offset o has weight (2/3)^(o - 1)


@dataclass(frozen=True)
class Jumps:
    """Tables of the automaton with offsets 1 .. max_offset. State: reg * max_offset + skip."""

    max_offset: int

    @property
    def states(self) -> int:
        return 2 * self.max_offset

    @property
    def blocks(self) -> int:
        return 2 * self.max_offset**2

    def block(self, flip: np.ndarray, offset0: np.ndarray, offset1: np.ndarray) -> np.ndarray:
        """Numbers of blocks; offsets count from 1."""
        number: np.ndarray = (flip * self.max_offset + offset0 - 1) * self.max_offset + offset1 - 1
        return number

    def parts(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Flip, offset0 and offset1 of blocks; the inverse of `block`."""
        flip, offsets = np.divmod(block, self.max_offset**2)
        offset0, offset1 = np.divmod(offsets, self.max_offset)
        return flip, offset0 + 1, offset1 + 1

    @cached_property
    def next_state_IS(self) -> np.ndarray:
        """The state after a block, by block and state before."""
        flip_I, offset0_I, offset1_I = (part[:, None] for part in self.parts(np.arange(self.blocks)))
        reg_S, skip_S = np.divmod(np.arange(self.states), self.max_offset)
        reg_IS = reg_S ^ flip_I
        jumped_IS = reg_IS * self.max_offset + np.where(reg_IS == 1, offset1_I, offset0_I) - 1
        return np.where(skip_S > 0, reg_S * self.max_offset + skip_S - 1, jumped_IS)

    @cached_property
    def halt_class_S(self) -> np.ndarray:
        """0 if the program halts at its depth, 1 if one later: what is left to skip after the last block."""
        return np.arange(self.states) % self.max_offset

    def block_weights(self, remaining: int) -> np.ndarray:
        """Probability of each block that has so many blocks behind it.

        Offsets that would jump further than one block behind the end are set to that, so every program halts at its
        depth or one later.
        """
        weight = OFFSET_DECAY ** np.arange(self.max_offset)
        reach = min(self.max_offset, remaining + 2)
        weight[reach - 1] += weight[reach:].sum()
        weight[reach:] = 0
        weight /= weight.sum()
        _, offset0_I, offset1_I = self.parts(np.arange(self.blocks))
        both: np.ndarray = weight[offset0_I - 1] * weight[offset1_I - 1] / 2
        return both

    def state_distribution(self, steps: int, depth: int) -> np.ndarray:
        """Where runs of random programs are after so many of `depth` blocks; the register starts as a fair bit."""
        prior = np.zeros(self.states)
        prior[[0, self.max_offset]] = 0.5
        for step in range(steps):
            prior = next_distribution(prior, self.next_state_IS, self.block_weights(depth - 1 - step))
        return prior
