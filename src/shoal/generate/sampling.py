"""Sampling that anyone can recompute: token = argmax(logits / T + g), with g from a counter-based generator.

The noise of a token depends on (seed, sample, position, token id) alone, never on batch, order or machine. The
generator is Philox 4x64-10 (Salmon et al., SC 2011) as numpy ships it, key = (seed, sample), counter starting at zero
and stepped before each block, as numpy does. Position p owns the 64-bit words [p * W, (p + 1) * W), W = `words(vocab)`;
token v takes the low half of word v // 2 if v is even, the high half if odd. That 32-bit r becomes
u = (r + 0.5) / 2**32 and g = -log(-log(u)).

Because r has 32 bits, g lies in [-3.13, 22.88]. Most of a large vocabulary would need a g near that end to win, so one
integer comparison dismisses it and logarithms are taken for a few dozen tokens only. Nothing is approximated.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.devices import to_numpy
from shoal.errors import ModelError

Words = npt.NDArray[np.uint32]

# Tokens within this many nats of the row's best logit are always considered; others only with exceptional noise. Any
# value gives the same tokens. 8 leaves about 40 of 49,152 candidates on a language model's logits.
NEAR = 8.0
TWO32 = 4294967296.0
# Small vocabularies draw the noise of several positions in one call: this many values, or one position's.
DRAW_AHEAD = 4096


def words(vocab: int) -> int:
    """64-bit words of noise per position: two tokens per word, rounded up to whole Philox blocks of four."""
    return -(-vocab // 8) * 4


class NoiseStream:
    """The noise of one sample, position after position."""

    def __init__(self, seed: int, sample: int, vocab: int, position: int = 0) -> None:
        self._philox = np.random.Philox(key=np.array([seed, sample], dtype=np.uint64))
        self._philox.advance(position * words(vocab) // 4)
        self._vocab = vocab
        self._ahead = max(1, DRAW_AHEAD // vocab)
        self._drawn = iter(np.empty((0, 0), dtype=np.uint32))

    def next(self) -> Words:
        """32 random bits for each token of the vocabulary at the next position."""
        bits_V: Words | None = next(self._drawn, None)
        if bits_V is not None:
            return bits_V
        raw = self._philox.random_raw(self._ahead * words(self._vocab)).astype("<u8", copy=False)
        self._drawn = iter(raw.view(np.uint32).reshape(self._ahead, -1)[:, : self._vocab])
        return next(self._drawn)


def gumbel(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Gumbel noise of 32 random bits."""
    uniform = (bits.astype(np.float64) + 0.5) / TWO32
    return np.asarray(-np.log(-np.log(uniform)))


def choose(scaled_BV: Tensor, bits: Sequence[Words]) -> tuple[Tensor, Tensor]:
    """Tokens argmax(scaled + g) and their log-probs under softmax(scaled); `scaled` is float32 logits / temperature.

    Ties go to the lowest token id.
    """
    tokens_B = torch.from_numpy(_winners(to_numpy(scaled_BV), np.stack(bits))).to(scaled_BV.device)
    logp_B = scaled_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1) - torch.logsumexp(scaled_BV, dim=1)
    return tokens_B, logp_B


def _winners(logits_BV: npt.NDArray[np.float32], bits_BV: Words) -> npt.NDArray[np.int64]:
    rows, tokens, scores, highest_B = _candidates(logits_BV, bits_BV)
    won = np.flatnonzero(scores == highest_B[rows])
    _, first = np.unique(rows[won], return_index=True)
    return np.asarray(tokens[won[first]], dtype=np.int64)


def _candidates(
    logits_BV: npt.NDArray[np.float32], bits_BV: Words
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Rows, tokens and scores of all that may win, in row and token order, and each row's highest score."""
    rows_B = np.arange(len(logits_BV))
    best_B = logits_BV.argmax(axis=1)
    # A token below the best by NEAR or more must draw g > g_best + NEAR to beat it: bits above `rare`, rounded down.
    own_B = gumbel(bits_BV[rows_B, best_B])
    rare_B = np.maximum(0.0, TWO32 * np.exp(-np.exp(-(own_B + NEAR))) - 2).astype(np.uint32)
    peak_B = logits_BV[rows_B, best_B]
    if not np.isfinite(peak_B).all():
        raise ModelError(f"logits of row {np.isfinite(peak_B).argmin()} are not finite: the weights have diverged")
    near_B = np.nextafter(peak_B - np.float32(NEAR), np.float32(-np.inf))  # the difference may have been rounded up
    rows, tokens = np.nonzero((logits_BV > near_B[:, None]) | (bits_BV >= rare_B[:, None]))
    scores = logits_BV[rows, tokens].astype(np.float64) + gumbel(bits_BV[rows, tokens])
    # Every row holds at least its best.
    return rows, tokens, scores, np.maximum.reduceat(scores, np.searchsorted(rows, rows_B))


def greedy(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row and its log-prob, for evaluation."""
    logp_BV = torch.log_softmax(logits_BV, dim=1)
    best = logp_BV.max(dim=1)
    return best.indices, best.values
