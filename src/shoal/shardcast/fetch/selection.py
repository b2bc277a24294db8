"""Relay selection: draws a source in proportion to success rate x bandwidth (INTELLECT-2's rule), as pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

ALPHA = 0.3  # weight of the newest observation
HEAL = 0.01  # every update gives every source this much of its success rate back
FLOOR = 1.0  # bytes per second: even the worst source is asked now and then


@dataclass(frozen=True, slots=True)
class Belief:
    """How fast a source is and how often it delivers; a speed of None was never measured."""

    bytes_per_s: float | None = None
    success: float = 1.0

    def delivered(self, bytes_per_s: float) -> "Belief":
        before = self.bytes_per_s
        speed = bytes_per_s if before is None else before + ALPHA * (bytes_per_s - before)
        return Belief(speed, self.success + ALPHA * (1 - self.success))

    def failed(self) -> "Belief":
        """Less success and less speed, never more: a quick refusal is not a sign of a fast relay."""
        speed = None if self.bytes_per_s is None else self.bytes_per_s * (1 - ALPHA)
        return Belief(speed, self.success * (1 - ALPHA))

    def healed(self) -> "Belief":
        return replace(self, success=min(1.0, self.success + HEAL))


def weights(beliefs: Sequence[Belief]) -> list[float]:
    """Success x speed. A source that was never measured counts as the fastest known, so that it soon is."""
    fastest = max((belief.bytes_per_s or 0.0 for belief in beliefs), default=0.0) or FLOOR
    return [
        max(belief.success, HEAL) * max(fastest if belief.bytes_per_s is None else belief.bytes_per_s, FLOOR)
        for belief in beliefs
    ]


def choose(beliefs: Sequence[Belief], rng: Random) -> int:
    """Draws a source in proportion to success x speed.

    Drawing, rather than taking the best, keeps a fast relay from being flooded by every client at once, and keeps
    measuring the others.
    """
    return rng.choices(range(len(beliefs)), weights=weights(beliefs))[0]
