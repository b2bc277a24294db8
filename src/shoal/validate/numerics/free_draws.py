"""Bets on free sampling: tokens are drawn by the distribution as it is, up to what rounding may do to it.

Without noise to redraw, the tokens of a file are compared with what the distribution itself expects of draws, as in
`checks/sampling.py`: powers of their probabilities, how many are unlikely, how often an answer ends where ending is
unlikely. An honest machine draws from a distribution that is rounded, so what it expects is not quite what the judge's
expects. By how much follows from how far rounding is aligned with what is bet on: on the trained tiny model at most
0.016 of the noise for powers and 0.05 for unlikely tokens, in every way; on one that is not trained, whose rounding is
the same at many places, more than 0.15. Odds allow for 0.45 and 0.75.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.protocol.rates.honest_rates import MARGIN
from shoal.validate.recompute import TILTS, UNLIKELY, Floats

# Ending is likely from this probability on (INTELLECT-2's termination check).
MIN_END = 0.1
# Ways in which a worker may end too often: so many times as likely as the distribution has it.
MORE_ENDS = np.array([2.0, 8.0, 64.0, 4096.0])
# Ways in which unlikely tokens may be too many or too few, in the same sense.
MORE_UNLIKELY = np.array([0.01, 0.2, 3.0, 10.0])
# Share of the noise that may be aligned with powers of probabilities, and with unlikely tokens.
ALIGNED, ALIGNED_UNLIKELY = 0.3, 0.5
FREE_BETS = (*(f"tilt {tilt:g}" for tilt in TILTS), "unlikely", "ends")


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens of one answer beside the distributions that they should be drawn from."""

    logprobs_T: Floats
    tilts_TL: Floats
    """log of the expected p^s of a token, for each s of TILTS."""
    squares_T: Floats
    tails_TU: Floats
    """Probability that a token is less likely than each of UNLIKELY."""
    ends_T: Floats
    ended_at: Sequence[int]
    """Tokens that ended the answer, or a turn of it."""
    vocab: int


def free_nats(answers: Sequence[Draws], noise: float) -> dict[str, float]:
    """What each bet on free draws wins on a file, in nats; `noise` is the judge's own."""
    logp_T, squares_T = (np.concatenate([getattr(a, name) for a in answers]) for name in ("logprobs_T", "squares_T"))
    tilts_TL, tails_TU = (np.concatenate([getattr(a, name) for a in answers]) for name in ("tilts_TL", "tails_TU"))
    most = MARGIN * noise
    won = {}
    for number, tilt in enumerate(TILTS):
        allowed_T = np.log1p(ALIGNED * most * _variation(tilt, tilts_TL, squares_T, answers[0].vocab))
        won[f"tilt {tilt:g}"] = float((tilt * logp_T - tilts_TL[:, number] - allowed_T).sum())
    unlikely = [
        too_many(int((logp_T < np.log(below)).sum()), tail_T, MORE_UNLIKELY, ALIGNED_UNLIKELY * most)
        for below, tail_T in zip(UNLIKELY, tails_TU.T, strict=True)
    ]
    won["unlikely"] = mean_of_products(np.concatenate(unlikely))
    early = [answer.ends_T[~(answer.ends_T >= MIN_END)] for answer in answers]
    count = sum(int((~(answer.ends_T[list(answer.ended_at)] >= MIN_END)).sum()) for answer in answers)
    won["ends"] = mean_of_products(too_many(count, np.concatenate(early), MORE_ENDS, ALIGNED_UNLIKELY * most))
    return won


def _variation(tilt: float, tilts_TL: Floats, squares_T: Floats, vocab: int) -> Floats:
    """Standard deviation of p^s over its mean, at each place."""
    means: Mapping[float, Floats] = dict(zip(TILTS, tilts_TL.T, strict=True))
    known = {1.0: np.log(squares_T), -1.0: np.full(len(squares_T), np.log(vocab)), **means}
    return np.asarray(np.sqrt(np.maximum(np.exp(known[2 * tilt] - 2 * means[tilt]) - 1, 0.0)))


def too_many(count: int, p_T: Floats, times_C: Floats, slack: float = 0.0) -> Floats:
    """Logs of products with an expectation of at most 1, if something of probability p_t at place t, give or take a
    share of `slack`, happens: each is large if that was so many times as often, and `count` is how often it was."""
    p_CT = np.where((times_C > 1)[:, None], np.exp(slack), np.exp(-slack)) * p_T
    return np.asarray(count * np.log(times_C) - np.log1p((times_C - 1.0)[:, None] * np.minimum(p_CT, 1.0)).sum(axis=1))


def mean_of_products(logs: Floats) -> float:
    return float(np.logaddexp.reduce(logs) - np.log(len(logs)))
