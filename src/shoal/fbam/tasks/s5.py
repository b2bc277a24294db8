"""Word problem of S5: the product of a sequence of permutations of five things, after each of them.

S5 is not solvable, so the problem is complete for NC1 (Barrington, 1989): about log n layers suffice for length n, a
fixed number is conjectured not to. A product of group elements forgets nothing. Inputs come from few generators (a
transposition, a 5-cycle and the identity), which an LSTM learns in minutes.
"""

from itertools import permutations

import numpy as np
import torch

from shoal.fbam.frames import FrameShape, TensorStream
from shoal.fbam.tasks.interface import code_points, text_frames
from shoal.fbam.tasks.window import next_distribution

ELEMENTS = list(permutations(range(5)))
GENERATORS = {"i": (0, 1, 2, 3, 4), "t": (1, 0, 2, 3, 4), "c": (1, 2, 3, 4, 0)}
SYMBOLS = code_points("".join(GENERATORS))


def _products() -> np.ndarray:
    number = {element: index for index, element in enumerate(ELEMENTS)}
    return np.array(
        [[number[tuple(element[i] for i in generator)] for element in ELEMENTS] for generator in GENERATORS.values()]
    )


class S5:
    """One symbol per frame; the action of every frame is the product so far, one of 120."""

    name = "s5"
    shape = FrameShape(rows=1, columns=1)
    actions = len(ELEMENTS)

    def __init__(self) -> None:
        self.product_GE = _products()
        """The element times a generator, by generator and element."""

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> TensorStream:
        words_BT = rng.integers(len(GENERATORS), size=(batch, length))
        targets, element_B = np.empty((batch, length), np.int64), np.zeros(batch, np.int64)
        for frame, generator_B in enumerate(words_BT.T):
            element_B = self.product_GE[generator_B, element_B]
            targets[:, frame] = element_B
        return TensorStream(text_frames(SYMBOLS[words_BT][:, :, None]), torch.from_numpy(targets))

    def frames(self, length: int) -> int:
        return length

    def window_floor(self, length: int, window: int) -> float:
        """Exact: a seen suffix permutes the products, so the guess is the commonest product of the unseen prefix."""
        prior_E = np.eye(1, len(ELEMENTS))[0]
        for _ in range(length - window):
            prior_E = next_distribution(prior_E, self.product_GE, np.full(len(GENERATORS), 1 / len(GENERATORS)))
        return float(prior_E.max())
