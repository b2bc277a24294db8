"""Computation check: TOPLOC proofs must match the hidden states of the claimed version."""

from collections.abc import Sequence

from shoal import toploc
from shoal.config import ThresholdsConfig
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.validate.recompute import Replayed, proven_chunks

CHECK = "computation"


def check_lengths(submission: Submission, hidden: int) -> Finding | None:
    """One proof for every chunk, no more and no fewer; this much is seen without computing anything."""
    for number, sample in enumerate(submission.rollouts):
        needed = sum(toploc.proof_size(end - begin, hidden) for begin, end in sample.turns)
        if len(sample.proof) != needed:
            rule = f"{sample.drawn_count} tokens in {len(sample.turns)} turns are proven in {needed} bytes"
            return Finding(CHECK, rule, f"{len(sample.proof)} bytes", f"{needed} bytes needed", number)
    return None


def check_computation(
    submission: Submission, replayed: Sequence[Replayed], thresholds: ThresholdsConfig, times: float = 1.0
) -> Finding | None:
    """Every chunk of every answer must have a proof, and every proof must fit.

    `times` widens the bounds that are not thresholds of the run: those that guessed values are told from true ones by
    a quarter as much, for a guess is never far from the truth.
    """
    usual = toploc.Thresholds()
    near = 1 + (times - 1) / 4
    limits = toploc.Thresholds(
        exponent_mismatches=thresholds.exponents,
        mantissa_mean=thresholds.mantissa_mean,
        mantissa_median=thresholds.mantissa_median,
        sign_mismatches=int(usual.sign_mismatches * times),
        share_of_guess=usual.share_of_guess * near,
        min_guess_error=usual.min_guess_error * near,
    )
    for number, (sample, own) in enumerate(zip(submission.rollouts, replayed, strict=True)):
        for result in proven_chunks(own.states_TD, sample.proof, sample.turns):
            if refusal := toploc.refusal(result, limits):
                rule = "a proof fits the states of the claimed version"
                return Finding(CHECK, rule, f"a proof of {len(sample.proof)} bytes", refusal, number)
    return None
