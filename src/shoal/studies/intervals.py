"""Means over seeds with Student's t intervals. The unit is the seed: steps of one run are not independent."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and where the true mean is with the given confidence."""

    mean: float
    low: float
    high: float
    seeds: int
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


UNKNOWN = Interval(0.0, -math.inf, math.inf, 0)
"""Of something that no run has shown."""


def mean_of(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of one value per seed. A single seed says nothing about the spread: its interval is unbounded."""
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval needs finite values of at least one seed, not {list(values)}")
    mean = statistics.fmean(values)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1, confidence)
    half = student_t(count - 1, confidence) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count, confidence)


def paired(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """How much more the second has than the first, seed by seed: both ran with the same seeds."""
    return mean_of([b - a for a, b in zip(first, second, strict=True)], confidence)


def shared_confidence(comparisons: int) -> float:
    """The confidence of each of several intervals if all of them are to hold together in 95 of 100 studies
    (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(1, comparisons)


def student_t(freedom: int, confidence: float) -> float:
    """The t with P(|T| < t) = confidence."""
    low, high = 0.0, 1.0
    while _inside(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < confidence else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """P(|T| < t) in closed form (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, odd = math.cos(angle), freedom % 2
    term = cos if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
