"""Sampling check: every token is the one that the lease's noise picks or, with free sampling, the tokens taken together
look like draws from the claimed distribution.
"""

from collections.abc import Sequence

import numpy as np

from shoal.config import ThresholdsConfig
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.validate.numerics.free_draws import MIN_END, MORE_ENDS, MORE_UNLIKELY, mean_of_products, too_many
from shoal.validate.recompute import TILTS, UNLIKELY, Replayed

CHECK = "sampling"


def check_logprobs(
    submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig
) -> Finding | None:
    """The claimed log-probs, which training may use, are those of the claimed version."""
    for number, (sample, own) in enumerate(zip(submission.rollouts, replayed, strict=True)):
        gaps_T = np.abs(sample.logprobs - own.logprobs_T)
        worst = int(gaps_T.argmax())
        if not gaps_T[worst] <= thresholds.logprob:
            rule = f"log-prob {worst} is the claimed version's, up to {thresholds.logprob:g}"
            return Finding("logprobs", rule, float(sample.logprobs[worst]), float(own.logprobs_T[worst]), number)
    return None


def check_seeded(submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig) -> Finding | None:
    """Each token is the argmax under the lease's noise, up to a margin, and nearly all are without any.

    The margin is for rounding, which decides between two tokens of equal score. What it leaves a cheater is to take the
    second of two that are as near, a few times per file, and to go on from there with the noise that is given.
    """
    inexact = tokens = 0
    for number, own in enumerate(replayed):
        assert own.shortfalls_T is not None
        worst = int(own.shortfalls_T.argmax())
        if not own.shortfalls_T[worst] <= thresholds.shortfall:
            rule = f"token {worst} is the best under the lease's noise, up to {thresholds.shortfall:g}"
            claimed = f"token {submission.rollouts[number].drawn[worst]}"
            return Finding(CHECK, rule, claimed, f"{own.shortfalls_T[worst]:.4g} below the best", number)
        inexact += int((own.shortfalls_T > 0).sum())
        tokens += len(own.shortfalls_T)
    if inexact > thresholds.inexact_tokens + thresholds.inexact_share * tokens:
        rule = f"at most {thresholds.inexact_tokens} + {thresholds.inexact_share:g} of a file's tokens are not the best"
        return Finding(CHECK, rule, f"{tokens} tokens", f"{inexact} not the best")
    return None


def check_free(submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig) -> Finding | None:
    """Tokens and ends are, taken together, as likely as draws are: text of another model is less so, text of a sharper
    distribution more.

    INTELLECT-2 refuses an answer that ends where ending had a probability below 0.1. Fair draws do that now and then,
    so such ends are counted instead, and compared with how many the distribution itself makes. All of this is about
    averages: it cannot tell a fair draw from the best of n, nor see a change of one or two tokens.
    """
    if not (worst := unlikely_ends(submission, replayed)) <= thresholds.surprise_file:
        rule = f"answers end where ending has a probability below {MIN_END} no more often than draws do"
        found = f"{worst:.3g} nats of evidence against it, {thresholds.surprise_file:g} may be"
        return Finding("termination", rule, "fair draws", found)
    scores = [surprise([own]) for own in replayed]
    number = int(np.argmax(scores))  # which is that of a NaN, if there is one
    rule = "tokens are as likely as draws are"
    if not scores[number] <= thresholds.surprise_sample:
        found = f"{scores[number]:.3g} nats of evidence against it, {thresholds.surprise_sample:g} may be"
        return Finding(CHECK, rule, "fair draws", found, number)
    if not (total := surprise(replayed)) <= thresholds.surprise_file:
        found = f"{total:.3g} nats of evidence against it, {thresholds.surprise_file:g} may be"
        return Finding(CHECK, rule, "fair draws", found)
    return None


def surprise(replayed: Sequence[Replayed]) -> float:
    """Evidence, in nats, that tokens were not drawn from the distribution: fair draws have more than x with a
    probability below e^-x, however few they are and however peaked the distribution is.

    For any s the product of p^s / E[p^s] over the tokens has expectation 1 under fair draws. So has, for any c, the
    product of c for each unlikely token over 1 + (c - 1) P(unlikely) for every one, which sees the second mode near
    zero that text of another model has (INTELLECT-2's token sampling check). And so has the mean of several such
    products; Markov's inequality does the rest.
    """
    logp_T = np.concatenate([own.logprobs_T for own in replayed])
    tilts_TL = np.concatenate([own.tilts_TL for own in replayed if own.tilts_TL is not None])
    tails_TU = np.concatenate([own.tails_TU for own in replayed if own.tails_TU is not None])
    tilted = mean_of_products(np.asarray(TILTS) * logp_T.sum() - tilts_TL.sum(axis=0))
    counted = [
        too_many(int((logp_T < unlikely).sum()), tail_T, MORE_UNLIKELY)
        for unlikely, tail_T in zip(np.log(UNLIKELY), tails_TU.T, strict=True)
    ]
    return mean_of_products(np.array([tilted, mean_of_products(np.concatenate(counted))]))


def unlikely_ends(submission: Submission, replayed: Sequence[Replayed]) -> float:
    """Evidence, in the same sense, that answers end at unlikely places more often than fair draws do."""
    ended, p_T = 0, []
    for sample, own in zip(submission.rollouts, replayed, strict=True):
        assert own.ends_T is not None
        p_T.append(own.ends_T[~(own.ends_T >= MIN_END)])
        ended += int((~(own.ends_T[sample.ended_at] >= MIN_END)).sum())
    return mean_of_products(too_many(ended, np.concatenate(p_T), MORE_ENDS))
