"""Turns: which tokens of an answer the policy drew, and which an environment inserted between them.

An answer of several turns is one row of tokens and a list of runs: the lengths of what was drawn, inserted, drawn, ...
in turn. It begins and ends with tokens that were drawn. An answer of one turn has an empty list. Loss, noise, log-probs
and proofs are about drawn tokens alone; inserted ones are context, and take room.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Runs = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
ONE_TURN: Runs = np.empty(0, np.int32)


def drawn_runs(runs: Runs, length: int) -> Iterator[tuple[int, int]]:
    """Where each turn begins and ends in an answer of this length."""
    if not len(runs):
        yield 0, length
        return
    ends = np.cumsum(runs).tolist()
    for turn in range(0, len(runs), 2):
        yield ends[turn] - int(runs[turn]), ends[turn]


def inserted_runs(runs: Runs) -> Iterator[tuple[int, int]]:
    """Where the tokens after each turn but the last begin and end."""
    ends = np.cumsum(runs).tolist()
    for turn in range(1, len(runs), 2):
        yield ends[turn - 1], ends[turn]


def drawn_places(runs: Runs, length: int) -> Places:
    """The places of all drawn tokens in an answer of this length."""
    if not len(runs):
        return np.arange(length)
    return np.flatnonzero(np.repeat(np.arange(len(runs)) % 2 == 0, runs))


def turns_of(runs: Runs) -> int:
    """How many turns an answer has."""
    return (len(runs) + 1) // 2 if len(runs) else 1


def drawn_count(runs: Runs, length: int) -> int:
    """How many tokens of an answer were drawn."""
    return int(runs[::2].sum()) if len(runs) else length


def breaks_form(runs: Runs, length: int, max_turns: int) -> str:
    """What is wrong with a list of runs; empty if nothing is."""
    if not len(runs):
        return ""
    if len(runs) < 3 or len(runs) % 2 == 0:
        return f"{len(runs)} runs: an answer of several turns has drawn tokens first and last"
    if (runs < 1).any():
        return f"a run of {int(runs.min())} tokens, each has one or more"
    if int(runs.sum(dtype=np.int64)) != length:
        return f"runs of {int(runs.sum(dtype=np.int64))} tokens together, the answer has {length}"
    if turns_of(runs) > max_turns:
        return f"{turns_of(runs)} turns, allowed {max_turns}"
    return ""
