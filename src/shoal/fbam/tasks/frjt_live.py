"""`frjt-live`: programs in which the register's start is never forgotten, so no window short of everything helps.

Each block is drawn again if the runs from register 0 and register 1 would meet, or could no longer halt differently.
Both ends of a program are then equally likely whatever blocks were seen: the floor is 0.50 for every window.
"""

from functools import cached_property

import numpy as np

from shoal.fbam.tasks.frjt import Frjt


class FrjtLive(Frjt):
    """Forward-referencing jumps whose answer depends on the first frame, at every depth."""

    name = "frjt-live"

    def draw_blocks(self, rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
        blocks_BT = np.empty((batch, length), np.int64)
        runs_B2 = np.broadcast_to([0, self.jumps.max_offset], (batch, 2))
        for at in range(length):
            weights_BI = self._allowed(length - 1 - at)[runs_B2[:, 0], runs_B2[:, 1]]
            blocks_BT[:, at] = draw_from(weights_BI, rng)
            runs_B2 = self.jumps.next_state_IS[blocks_BT[:, at, None], runs_B2]
        return blocks_BT

    def window_floor(self, length: int, window: int) -> float:
        return 1.0 if window > length else 0.5

    def _allowed(self, remaining: int) -> np.ndarray:
        """Weights of blocks by the states of both runs: those of random programs, 0 for blocks to draw again."""
        tables = self._allowed_tables
        return tables[min(remaining, len(tables) - 1)]

    @cached_property
    def _allowed_tables(self) -> list[np.ndarray]:
        """The tables for 0, 1, 2, .. remaining blocks, until they no longer change."""
        count, next_state = self.jumps.states, self.jumps.next_state_IS
        live_SS = self.jumps.halt_class_S[:, None] != self.jumps.halt_class_S
        tables: list[np.ndarray] = []
        while True:
            weights_I = self.jumps.block_weights(len(tables))
            kept_SSI = np.stack([live_SS[np.ix_(after_S, after_S)] for after_S in next_state], axis=2)
            tables.append(kept_SSI * weights_I)
            before, live_SS = live_SS, tables[-1].sum(axis=2) > 0
            # Offsets are limited near the end alone; from there on equal tables stay equal.
            if len(tables) > count and np.array_equal(before, live_SS):
                return tables


def draw_from(weights_BI: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw per row, with probability proportional to its weights."""
    sums_BI = np.cumsum(weights_BI, axis=1)
    points_B1 = rng.random((len(sums_BI), 1)) * sums_BI[:, -1:]
    drawn: np.ndarray = (points_B1 >= sums_BI).sum(axis=1)
    return drawn
