"""Proportions with confidence intervals, and paired differences. The unit is the task: answers to one task are not
independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, nan, sqrt
from random import Random

# 97.5 % point of the normal distribution, for 95 % intervals.
Z = 1.959964
FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(solved: float, tasks: int) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson 1927), good also near 0 and 1."""
    share = solved / tasks
    centre = (share + Z * Z / (2 * tasks)) / (1 + Z * Z / tasks)
    half = Z / (1 + Z * Z / tasks) * sqrt(share * (1 - share) / tasks + Z * Z / (4 * tasks * tasks))
    # At the ends the exact bounds are 0 and 1; rounding must not push the interval off the share itself.
    return min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Chance that one of k answers is right, from `samples` answers of which `solved` are (Chen et al. 2021): unbiased.

    It is the share of all choices of k answers that hold a right one; 1 - (1 - rate)^k would be too low.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of each task, there are {samples}")
    return 1.0 - comb(samples - solved, k) / comb(samples, k)


def mean_of_tasks(values: Sequence[float]) -> Estimate:
    """The mean of one value per task. Where all are 0 or 1 the interval is Wilson's, else the normal one, in 0..1."""
    count = len(values)
    mean = sum(values) / count
    if all(value in (0.0, 1.0) for value in values):
        return Estimate(mean, *wilson(sum(values), count))
    spread = sqrt(sum((value - mean) ** 2 for value in values) / max(1, count - 1) / count)
    floor, ceiling = min(0.0, *values), max(1.0, *values)
    return Estimate(mean, max(floor, mean - Z * spread), min(ceiling, mean + Z * spread))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: how well one orders the other, from -1 to 1. Equal values share a rank; if all are equal, NaN."""
    ranks = [_ranks(values) for values in (first, second)]
    middle = (len(first) + 1) / 2
    a, b = ([rank - middle for rank in own] for own in ranks)
    spread = sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / spread if spread else nan


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values), 1):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better the second of two models does on the same tasks, and how easily chance would do as much."""

    mean: Estimate
    p_value: float

    def __str__(self) -> str:
        return f"{self.mean.value:+.3f} [{self.mean.low:+.3f}, {self.mean.high:+.3f}] p={self.p_value:.4f}"


def compare(first: Sequence[float], second: Sequence[float]) -> Difference:
    """A paired comparison, task by task. The p-value is that of a sign-flip test, two-sided and seeded."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    count = len(differences)
    mean = sum(differences) / count
    spread = sqrt(sum((d - mean) ** 2 for d in differences) / max(1, count - 1) / count)
    estimate = Estimate(mean, mean - Z * spread, mean + Z * spread)
    sizes = [abs(d) for d in differences if d]
    if not sizes:
        return Difference(estimate, 1.0)
    rng = Random(0)
    extreme = 0
    for _ in range(FLIPS):
        signs = rng.getrandbits(len(sizes))
        flipped = sum(size if signs >> place & 1 else -size for place, size in enumerate(sizes))
        extreme += abs(flipped) >= abs(mean) * count - 1e-12
    return Difference(estimate, (extreme + 1) / (FLIPS + 1))
