"""Everything that a judge needs of a row of logits, from one pass over blocks of the vocabulary.

No row of logits exists as a whole: a block of the output matrix is multiplied, read once while it is in the processor's
cache, and forgotten.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.devices import to_numpy
from shoal.errors import ModelError
from shoal.generate.sampling import Words, gumbel
from shoal.validate.vocabulary_kernels import add_powers, raise_best

Floats = npt.NDArray[np.float64]
# Columns of the output matrix per block: those of a few hundred rows fit into the cache.
BLOCK = 2048


class VocabularySums:
    """Sums over the vocabulary of some rows: add all blocks of their logits / temperature, then ask."""

    def __init__(self, tokens_R: Tensor, powers: Sequence[float] = (1.0,), bits: Sequence[Words] | None = None) -> None:
        """`tokens` are those that were drawn, `bits` the noise of each row where it is known."""
        rows = len(tokens_R)
        self._tokens_R = to_numpy(tokens_R)
        self._powers_P = np.array(powers, dtype=np.float32)
        self._highest_R = np.full(rows, -np.inf, dtype=np.float32)
        self._sums_RP = np.zeros((rows, len(powers)))
        self._own_R = np.zeros(rows)
        self._bits_RV = np.stack(bits) if bits is not None else None
        self._best_R = np.full(rows, -np.inf)
        self._winner_R = np.full(rows, -1, dtype=np.int64)

    def add(self, scaled_RB: Tensor, first: int = 0) -> None:
        """Adds the logits / temperature of the tokens from `first` on."""
        peaks_R = to_numpy(scaled_RB.amax(dim=1))
        if not np.isfinite(peaks_R).all():
            raise ModelError(f"logits of row {np.isfinite(peaks_R).argmin()} are not finite: the weights have diverged")
        block_RB = to_numpy(scaled_RB)
        add_powers(block_RB, peaks_R, self._powers_P, self._highest_R, self._sums_RP)
        width = block_RB.shape[1]
        if self._bits_RV is not None:
            bits_RB = self._bits_RV[:, first : first + width]
            raise_best(block_RB, peaks_R, bits_RB, first, self._best_R, self._winner_R)
        here = np.flatnonzero((self._tokens_R >= first) & (self._tokens_R < first + width))
        self._own_R[here] = block_RB[here, self._tokens_R[here] - first]

    def log_sums(self) -> Floats:
        """log of the sum of e^(power x logit), for each power."""
        highest_R1 = self._highest_R.astype(np.float64)[:, None]
        return np.asarray(self._powers_P.astype(np.float64) * highest_R1 + np.log(self._sums_RP))

    def logits(self) -> Floats:
        """The logits of the tokens that were drawn."""
        return self._own_R

    def logprobs(self) -> Floats:
        """Their log-probs; the first power is 1."""
        return np.asarray(self._own_R - self.log_sums()[:, 0])

    def shortfalls(self) -> Floats | None:
        """How far each token's logit + noise is below the best one's: 0 where it is what `sampling.choose` draws.

        The token that won is compared by its name: two logarithms of the same noise may differ in the last bit.
        """
        if self._bits_RV is None:
            return None
        own_R = self._own_R + gumbel(self._bits_RV[np.arange(len(self._own_R)), self._tokens_R])
        return np.where(self._winner_R == self._tokens_R, 0.0, np.maximum(self._best_R - own_R, 0.0))
