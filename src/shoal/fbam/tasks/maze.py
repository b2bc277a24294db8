"""Withheld maze: track a position in a maze that is never shown, from the moves alone.

The rules of the paper's task are not known. Ours: a fixed tree maze of 9 x 9 cells, the same for every sequence; a
frame shows the move that was tried; a blocked move leaves the position; the action of every frame is the cell.
"""

from random import Random

import numpy as np
import torch

from shoal.fbam.frames import FrameShape, TensorStream
from shoal.fbam.tasks.interface import code_points, text_frames
from shoal.fbam.tasks.window import next_distribution, window_accuracy

SIDE = 9
MAZE_SEED = 9
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
SYMBOLS = code_points("^v<>")
START_CELL = SIDE * SIDE // 2  # the middle
WINDOWS = 512  # that a floor is averaged over


def build_maze(side: int, seed: int) -> np.ndarray:
    """The cell after each move, moves x cells, in a random tree maze: one path between any two cells (Prim, 1957)."""
    random = Random(seed)
    after = np.broadcast_to(np.arange(side * side), (len(MOVES), side * side)).copy()
    joined, walls = {0}, _walls_of(0, side)
    while walls:
        cell, move, other = walls.pop(int(random.random() * len(walls)))
        if other in joined:
            continue
        after[move, cell], after[move ^ 1, other] = other, cell
        joined.add(other)
        walls += _walls_of(other, side)
    return after


def _walls_of(cell: int, side: int) -> list[tuple[int, int, int]]:
    """Cell, move and neighbour, for the neighbours inside the square; moves 2 k and 2 k + 1 undo each other."""
    row, column = divmod(cell, side)
    places = [(number, row + down, column + right) for number, (down, right) in enumerate(MOVES)]
    return [(cell, number, r * side + c) for number, r, c in places if 0 <= r < side and 0 <= c < side]


class Maze:
    """One tried move per frame; the action of every frame is the cell after it, one of 81."""

    name = "maze"
    shape = FrameShape(rows=1, columns=1)
    actions = SIDE * SIDE

    def __init__(self) -> None:
        self.after_MC = build_maze(SIDE, MAZE_SEED)

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> TensorStream:
        moves_BT = rng.integers(len(MOVES), size=(batch, length))
        targets, cell_B = np.empty((batch, length), np.int64), np.full(batch, START_CELL)
        for frame, move_B in enumerate(moves_BT.T):
            cell_B = self.after_MC[move_B, cell_B]
            targets[:, frame] = cell_B
        return TensorStream(text_frames(SYMBOLS[moves_BT][:, :, None]), torch.from_numpy(targets))

    def frames(self, length: int) -> int:
        return length

    def window_floor(self, length: int, window: int) -> float:
        prior_C = np.eye(1, self.actions, START_CELL)[0]
        for _ in range(length - window):
            prior_C = next_distribution(prior_C, self.after_MC, np.full(len(MOVES), 1 / len(MOVES)))
        windows_NW = np.random.default_rng(0).integers(len(MOVES), size=(WINDOWS, min(window, length)))
        return window_accuracy(prior_C, self.after_MC, windows_NW, np.arange(self.actions))
