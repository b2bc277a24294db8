"""What runs learned, and whether one side learned what the other did."""

from collections.abc import Sequence

from shoal.studies.intervals import CONFIDENCE, Interval, mean_of
from shoal.studies.study import Outcome

SHARE = 0.75
"""Of the other side's gain. A fixed margin would call a side that learned nothing equal to one that learned little."""
KEPT = f"gain in held-out pass@1 minus {SHARE:g} times the gain of level 0"


def finals(runs: Sequence[Outcome]) -> list[float]:
    """Held-out pass@1 of the last version, seed by seed."""
    return [run["final"] for run in runs]


def bases(runs: Sequence[Outcome]) -> list[float]:
    """Held-out pass@1 before the first step, seed by seed."""
    return [run["measured"][0]["pass_at_1"] for run in runs]


def gains(runs: Sequence[Outcome]) -> list[float]:
    """What each run learned."""
    return [after - before for before, after in zip(bases(runs), finals(runs), strict=True)]


def surplus(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[float]:
    """By how much the gain of the second exceeds three quarters of the gain of the first, seed by seed."""
    return [b - SHARE * a for a, b in zip(gains(first), gains(second), strict=True)]


def kept(first: Sequence[Outcome], second: Sequence[Outcome], confidence: float = CONFIDENCE) -> Interval:
    """The mean surplus: the second learned what the first did if it is above 0."""
    return mean_of(surplus(first, second), confidence)
