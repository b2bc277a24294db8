"""Fair draws: every token is the one that the lease's noise picks, or, where the noise is the worker's own, the tokens
taken together look like draws from the claimed distribution.
"""

from collections.abc import Sequence

import numpy as np

from shoal.config import ThresholdsConfig
from shoal.rollout.record import Submission
from shoal.validate.finding import Finding
from shoal.validate.prefill import Replayed

CHECK = "sampling"
# An answer may end where ending had at least this probability (INTELLECT-2's termination check).
LEAST_END = 0.1


def check_logprobs(
    submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig
) -> Finding | None:
    """The claimed log-probs, which training may use, are those of the claimed version."""
    for number, (sample, own) in enumerate(zip(submission.rollouts, replayed, strict=True)):
        gaps_T = np.abs(np.asarray(sample.logprobs) - own.logprobs_T)
        worst = int(gaps_T.argmax())
        if not gaps_T[worst] <= thresholds.logprob:
            rule = f"log-prob {worst} is the claimed version's, up to {thresholds.logprob:g}"
            return Finding("logprobs", rule, sample.logprobs[worst], float(own.logprobs_T[worst]), number)
    return None


def check_seeded(submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig) -> Finding | None:
    """Each token is the argmax under the lease's noise, up to a margin, and nearly all are without any."""
    inexact = tokens = 0
    for number, own in enumerate(replayed):
        assert own.shortfalls_T is not None
        worst = int(own.shortfalls_T.argmax())
        if not own.shortfalls_T[worst] <= thresholds.shortfall:
            rule = f"token {worst} is the best under the lease's noise, up to {thresholds.shortfall:g}"
            claimed = f"token {submission.rollouts[number].completion[worst]}"
            return Finding(CHECK, rule, claimed, f"{own.shortfalls_T[worst]:.4g} below the best", number)
        inexact += int((own.shortfalls_T > 0).sum())
        tokens += len(own.shortfalls_T)
    if inexact > thresholds.inexact_tokens + thresholds.inexact_share * tokens:
        rule = f"at most {thresholds.inexact_tokens} + {thresholds.inexact_share:g} of a file's tokens are not the best"
        return Finding(CHECK, rule, f"{tokens} tokens", f"{inexact} not the best")
    return None


def check_free(submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig) -> Finding | None:
    """Ends are likely ones, and surprise adds up to what the distribution itself expects, sample by sample and in all.

    Text of another model is more surprising than a draw, text of a sharper distribution less. This is a test on
    averages: it cannot tell a fair draw from one that was picked among several.
    """
    for number, (sample, own) in enumerate(zip(submission.rollouts, replayed, strict=True)):
        if sample.finish == "eos" and own.ends_T[-1] < LEAST_END:
            rule = f"an answer ends where ending has a probability of {LEAST_END} or more"
            return Finding("termination", rule, "finish eos", f"probability {own.ends_T[-1]:.3g}", number)
    scores = [surprise([own]) for own in replayed]
    worst = int(np.abs(scores).argmax())
    rule = "surprise of the tokens lies within {:g} standard deviations of the distribution's own"
    if not abs(scores[worst]) <= thresholds.surprise_sample:
        return Finding(CHECK, rule.format(thresholds.surprise_sample), "fair draws", round(scores[worst], 2), worst)
    if not abs(total := surprise(replayed)) <= thresholds.surprise_file:
        return Finding(CHECK, rule.format(thresholds.surprise_file), "fair draws", round(total, 2))
    return None


def surprise(replayed: Sequence[Replayed]) -> float:
    """By how many standard deviations the tokens are less likely than draws are on average."""
    excess = sum(float((-own.logprobs_T - own.entropies_T).sum()) for own in replayed)
    variance = sum(float(own.variances_T.sum()) for own in replayed)
    # Where the distribution leaves no choice, nothing can be surprising but a wrong token.
    return excess / float(np.sqrt(variance + 1e-3))
