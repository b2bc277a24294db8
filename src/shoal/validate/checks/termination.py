"""Termination check: a turn ends in its only end token, or where it is cut off without one."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding

CHECK = "termination"
NO_TURNS: Mapping[str, int] = MappingProxyType({})


def check_termination(
    submission: Submission, eos_ids: frozenset[int], max_new_tokens: int, turn_tokens: Mapping[str, int] = NO_TURNS
) -> Finding | None:
    """Holds for every way of sampling; that the end token was drawn fairly is another check's concern.

    `turn_tokens` are the most tokens of a turn, by the names of environments; answers to other tasks have one turn.
    """
    for number, sample in enumerate(submission.rollouts):
        if len(sample.runs) and sample.source not in turn_tokens:
            rule = f"answers to {sample.source}, which is not an environment, have one turn"
            return Finding(CHECK, rule, f"{len(sample.turns)} turns", "one", number)
        of_a_turn = turn_tokens.get(sample.source, max_new_tokens)
        if finding := _check(number, sample, eos_ids, of_a_turn, max_new_tokens):
            return finding
    return None


def _check(number: int, sample: Rollout, eos_ids: frozenset[int], of_a_turn: int, longest: int) -> Finding | None:
    last_turn = len(sample.turns) - 1
    for turn, (begin, end) in enumerate(sample.turns):
        ends = np.flatnonzero(np.isin(sample.completion[begin:end], list(eos_ids))).tolist()
        length, most = end - begin, min(of_a_turn, longest - begin)
        where = f"turn {turn}: " if last_turn else ""
        if ends and ends[0] != length - 1:
            rule = "nothing follows an end token"
            return Finding(CHECK, f"{where}{rule}", f"{length} tokens", f"an end token at {ends[0]}", number)
        if turn < last_turn and not ends:
            rule = "a turn that has no end token is the last one"
            return Finding(CHECK, f"{where}{rule}", f"{last_turn + 1} turns", "no end token", number)
        if length > most:
            return Finding(CHECK, f"{where}a turn has at most {most} tokens", f"{length} tokens", f"{most}", number)
        if turn < last_turn:
            continue
        if sample.finish == "eos" and not ends:
            return Finding(CHECK, f"{where}an answer that ended has an end token", "finish eos", "no end token", number)
        if sample.finish == "length" and (ends or length != most):
            rule = f"{where}an answer is cut off at {most} tokens and not before"
            return Finding(CHECK, rule, "finish length", f"{length} tokens{', ended' if ends else ''}", number)
    return None
