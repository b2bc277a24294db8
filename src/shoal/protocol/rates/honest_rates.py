"""Honest rates: how often honest machines are off by how much, as histograms per way and upper bounds on their tails.

A histogram counts units (stretches of tokens), tokens and proof chunks by how far they are off, in multiples of the
noise that the judge measures on its own weights. Counts of several machines add up. A tail is bounded by the worst of
all ways, each by a confidence bound (Chernoff), after its distances were stretched by a margin: hardware that nobody
has tried may be that much worse than all that was.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

Floats = npt.NDArray[np.float64]
# Steps of all scales: 0, then from 1/8 up to 512 times the judge's own noise, four per doubling.
EDGES: Floats = np.concatenate([[0.0], 2.0 ** (np.arange(-12, 37) / 4)])
# How much worse than the worst way that was measured an honest one may be.
MARGIN = 1.5
# Confidence that a true rate is below its bound, for each bound.
DOUBT = 1e-4
# A tail is measured up to where at least so many were seen.
MIN_SEEN = 10
# Beyond that, shortfalls become rarer by a factor of e at least every so many multiples of the noise, before they are
# stretched by the margin. Measured as the mean excess over 1, 2 and 4 times the noise: 0.8 to 1.8 in the emulated ways,
# at most 4.2 in vLLM.
FALL = 4.0
_ONE = int(np.searchsorted(EDGES, 1.0))


class Histogram(BaseModel):
    """How many were off by more than each edge of the scale."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    count: float = Field(ge=0, lt=1 << 53)
    """What the rates refer to: units, chunks, or the expected number of close calls among tokens."""
    above: tuple[Annotated[int, Field(ge=0, lt=1 << 53)], ...] = Field(min_length=len(EDGES), max_length=len(EDGES))

    @model_validator(mode="after")
    def _never_rises(self) -> Self:
        """More are above a lower edge than above a higher one; rates that rise would turn odds around."""
        for lower, higher in pairwise(self.above):
            if higher > lower:
                raise ValueError(f"{higher} are above an edge of the scale, and only {lower} above the one before it")
        return self

    @classmethod
    def of(cls, distances: Floats, count: float | None = None) -> Self:
        above = (np.asarray(distances)[None, :] > EDGES[:, None]).sum(axis=1)
        return cls(count=float(len(distances) if count is None else count), above=tuple(map(int, above)))

    def __add__(self, other: Self) -> Self:
        return type(self)(
            count=self.count + other.count,
            above=tuple(a + b for a, b in zip(self.above, other.above, strict=True)),
        )


def upper_bound(seen: float, count: float, doubt: float = DOUBT) -> float:
    """The largest rate that `seen` of `count` are not surprising for: Chernoff's bound, for rates and for intensities.

    For an intensity (`seen` may exceed `count`) it is that of the Poisson distribution, which holds for both.
    """
    if count <= 0:
        return math.inf
    allowed = -math.log(doubt)
    low, high = seen, seen + allowed + math.sqrt(allowed * allowed + 2 * allowed * seen) + 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        surprise = middle - seen + (seen * math.log(seen / middle) if seen else 0.0)
        low, high = (middle, high) if surprise < allowed else (low, middle)
    return high / count


def bounds(
    ways: Iterable[Histogram], margin: float = MARGIN, *, intensity: bool = False, exponential: bool = False
) -> Floats:
    """Upper bounds on the share above each edge: the worst of all ways, each made worse by the margin.

    Twice the noise is above 2x as often as the noise is above x. The intensity of close calls that it decides the other
    way doubles besides. Beyond what was seen often enough to measure, a tail falls with the square of the distance, as
    it does at least where noise has a third moment; or, if `exponential`, by a factor of e every FALL.
    """
    worst = np.zeros(len(EDGES))
    for histogram in ways:
        worst = np.maximum(worst, _tail(histogram, exponential=exponential))
    steps = math.ceil(4 * math.log2(margin))
    stretched = worst[np.maximum(np.arange(len(EDGES)) - steps, 0)]
    return np.asarray(stretched * margin if intensity else np.minimum(1.0, stretched))


def _tail(histogram: Histogram, *, exponential: bool) -> Floats:
    """Bounds of one way."""
    found = np.array([upper_bound(seen, histogram.count) for seen in histogram.above])
    last = max([_ONE, *(n for n, seen in enumerate(histogram.above) if seen >= MIN_SEEN)])
    from_last = EDGES[last:]
    fall = np.exp((from_last[0] - from_last) / FALL) if exponential else (from_last[0] / from_last) ** 2
    return np.concatenate([found[:last], np.minimum(found[last:], found[last] * fall)])


class HonestRates(BaseModel):
    """What is known of honest machines, by the name of a way or profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gaps: Mapping[str, Histogram]
    """Root mean square of a unit's log-prob gaps."""
    shortfalls: Mapping[str, Histogram]
    """Tokens that are not the best under the lease's noise, per expected close call."""
    chunks: Mapping[str, Histogram]
    """Mean difference of a proof's mantissas."""

    @classmethod
    def of(cls, ways: Mapping[str, tuple[Histogram, Histogram, Histogram]]) -> Self:
        """From gaps, shortfalls and chunks of each way."""
        columns = zip(*ways.values(), strict=True)
        return cls(
            **{name: dict(zip(ways, found, strict=True)) for name, found in zip(cls.model_fields, columns, strict=True)}
        )

    def __add__(self, other: Self) -> Self:
        fields = type(self).model_fields
        return type(self)(**{name: _merged(getattr(self, name), getattr(other, name)) for name in fields})

    def without(self, way: str) -> Self:
        """What is known without a way: `flash` of the tiny model, and `smollm2/flash`."""
        names = {key for key in self.gaps if key == way or (key.count("/") == 1 and key.endswith(f"/{way}"))}
        return type(self)(
            **{
                name: {key: value for key, value in getattr(self, name).items() if key not in names}
                for name in type(self).model_fields
            }
        )


def _merged(first: Mapping[str, Histogram], second: Mapping[str, Histogram]) -> dict[str, Histogram]:
    both = dict(first)
    for name, histogram in second.items():
        both[name] = both[name] + histogram if name in both else histogram
    return both
