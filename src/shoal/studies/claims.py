"""Verdicts on claims, computed from intervals and never written by hand.

A claim says that a value is within a range. It held if the whole interval is inside the range, it did not hold if the
whole interval is outside, and otherwise the study could not decide it: more seeds are needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.studies.intervals import Interval

Outcome = Literal["held", "did not hold", "undecided"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, the value that decides it, and the range that the value must be in for the sentence to be true."""

    text: str
    measure: str
    interval: Interval
    lower: float = -math.inf
    upper: float = math.inf
    is_ours: bool = False
    """Whether it is about a choice of Shoal's instead of the paper's: it does not count for the paper's claim."""

    @property
    def outcome(self) -> Outcome:
        found = self.interval
        if found.low == found.high and (
            found.seeds < seeds_if_equal(found.confidence) or found.mean in (self.lower, self.upper)
        ):
            return "undecided"  # runs that are all equal say nothing about the spread, however few they are
        if self.lower <= found.low and found.high <= self.upper:
            return "held"
        if found.high < self.lower or found.low > self.upper:
            return "did not hold"
        return "undecided"

    @property
    def sentence(self) -> str:
        found = self.interval
        return (
            f"{self.text}: {self.outcome}; {self.measure} is {found} ({found.confidence:.3g} confidence, {found.seeds} "
            f"seeds), to be {self._range()}."
        )

    def _range(self) -> str:
        if math.isinf(self.upper):
            return f"at least {self.lower:g}"
        if math.isinf(self.lower):
            return f"at most {self.upper:g}"
        return f"within {self.lower:g} .. {self.upper:g}"

    def to_json(self) -> dict[str, object]:
        found = self.interval
        return {
            "claim": self.text,
            "measure": self.measure,
            "outcome": self.outcome,
            "of": "shoal" if self.is_ours else "paper",
            "mean": found.mean,
            "low": _bound(found.low),
            "high": _bound(found.high),
            "seeds": found.seeds,
            "confidence": found.confidence,
            "lower": _bound(self.lower),
            "upper": _bound(self.upper),
            "sentence": self.sentence,
        }


def seeds_if_equal(confidence: float) -> int:
    """How many seeds must be alike to decide something: if half of all runs were on the other side of a bound, so many
    would be on one side of it less often than the confidence leaves room for (sign test, two-sided)."""
    return math.ceil(math.log2(2 / (1 - confidence)))


def overall(claims: Sequence[Claim]) -> Outcome:
    """Of the paper's claims together, or of ours where it makes none: all must hold, and one that did not decides."""
    outcomes = {claim.outcome for claim in claims if not claim.is_ours or all_ours(claims)}
    if "did not hold" in outcomes:
        return "did not hold"
    return "held" if outcomes == {"held"} else "undecided"


def all_ours(claims: Sequence[Claim]) -> bool:
    return all(claim.is_ours for claim in claims)


def _bound(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None
