"""An answer beside its recomputation: gaps, shortfalls and proof chunks, each over the noise that it would have anyway.

Unit noise in all logits moves a token's log-prob by the square root of 1 - 2p + sum of p^2, and lets the second best
token win with a density of 1 - sum of p^2 (both before temperature). Measured against these, a sure token and an
uncertain one say equally much.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from shoal import toploc
from shoal.validate.numerics.bets import Floats, Noise, Observed
from shoal.validate.numerics.free_draws import Draws
from shoal.validate.recompute import proven_chunks

# Where a token is all but certain, log-probs are rounded by more than logits move them.
MIN_SPREAD = 0.01
# How far off a chunk is whose proof is not a proof at all.
NO_PROOF = 1e9
# Rules that rounding does not break. How far mantissas differ is not among them: it is the distance that is bet on, and
# on noisy weights it may exceed any fixed number.
STRUCTURE = toploc.Thresholds(mantissa_mean=math.inf, mantissa_median=math.inf)


def spread(logprobs_T: Floats, squares_T: Floats) -> Floats:
    """What unit noise in all logits makes of each log-prob; `squares` is the sum of p^2 over the vocabulary."""
    return np.asarray(np.sqrt(np.maximum(1 - 2 * np.exp(logprobs_T) + squares_T, MIN_SPREAD**2)))


def observe(
    claimed_T: Floats,
    logprobs_T: Floats,
    squares_T: Floats,
    shortfalls_T: Floats,
    states_TD: Tensor,
    proof: bytes | None,
    others: dict[str, Floats],
    draws: Draws | None = None,
    turns: Sequence[tuple[int, int]] | None = None,
) -> Observed:
    """What is seen of one answer. `others` are its log-probs in other computations, by name.

    `proof` is None in a run without proofs: nothing is then bet on chunks. `turns` are where those of an answer of
    several begin and end."""
    spread_T = spread(logprobs_T, squares_T)
    return Observed(
        gaps_T=(claimed_T - logprobs_T) / spread_T,
        shortfalls_T=shortfalls_T,
        close_T=np.maximum(0.0, 1 - squares_T),
        chunks_C=np.zeros(0) if proof is None else chunk_distances(states_TD, proof, turns),
        shifts={name: (other_T - logprobs_T) / spread_T for name, other_T in others.items()},
        draws=draws,
    )


def chunk_distances(states_TD: Tensor, proof: bytes, turns: Sequence[tuple[int, int]] | None = None) -> Floats:
    """Mean mantissa difference per proof chunk; a chunk that breaks a rule no rounding breaks is as far off as can be.

    Signs that differ, points that collide and values no better than a guess are what forgeries look like; exponents
    that differ are counted by the mantissas that cannot be compared.
    """
    found = []
    for chunk in proven_chunks(states_TD, proof, turns or [(0, len(states_TD))]):
        is_forged = toploc.refusal(chunk, STRUCTURE) is not None
        found.append(NO_PROOF if is_forged else chunk.mantissa_mean)
    return np.array(found)


def own_noise(answers: list[Observed]) -> Noise:
    """Noise of the judge's own arithmetic, from answers that it computed both ways itself."""
    gaps_T = np.concatenate([answer.gaps_T for answer in answers])
    return Noise(
        gap=max(float(np.sqrt(np.mean(gaps_T**2))), 1e-6),
        mantissa=max(float(np.mean(np.concatenate([answer.chunks_C for answer in answers]))), 1e-3),
    )
