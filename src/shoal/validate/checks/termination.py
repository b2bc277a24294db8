"""Termination check: an answer ends in its only end token, or at the length limit without one."""

import numpy as np

from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding

CHECK = "termination"


def check_termination(submission: Submission, eos_ids: frozenset[int], max_new_tokens: int) -> Finding | None:
    """Holds for every way of sampling; that the end token was drawn fairly is another check's concern."""
    for number, sample in enumerate(submission.rollouts):
        if finding := _check(number, sample, eos_ids, max_new_tokens):
            return finding
    return None


def _check(number: int, sample: Rollout, eos_ids: frozenset[int], max_tokens: int) -> Finding | None:
    ends = np.flatnonzero(np.isin(sample.completion, list(eos_ids))).tolist()
    length = len(sample.completion)
    if ends and ends[0] != length - 1:
        rule = "nothing follows an end token"
        return Finding(CHECK, rule, f"{length} tokens", f"an end token at {ends[0]}", number)
    if sample.finish == "eos" and not ends:
        return Finding(CHECK, "an answer that ended has an end token", "finish eos", "no end token", number)
    if sample.finish == "length" and (ends or length != max_tokens):
        rule = f"an answer is cut off at {max_tokens} tokens and not before"
        return Finding(CHECK, rule, "finish length", f"{length} tokens{', ended' if ends else ''}", number)
    return None
