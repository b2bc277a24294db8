"""Evidence against a node over its life: a sum over all possible beginnings (Shiryaev-Roberts e-process).

A node may be honest for a thousand files and cheat from then on. Each bet therefore starts again with every file, the
n-th time with a stake of 1 / (n (n + 1)): the stakes of an endless life add up to 1. What all of them have won together
has an expectation of at most 1 for an honest node, and by Ville's inequality it reaches 1 / P with a probability of at
most P, ever. A cheat that begins with file n has to win 2 log n nats more for that; one that begins at once has not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Probability that an honest node is ever banned for its numbers, over its whole life.
FALSE_BAN = 1e-6
BAN_NATS = -math.log(FALSE_BAN)


@dataclass(slots=True)
class Account:
    """What bets against one node have won so far."""

    files: int = 0
    tokens: int = 0
    won: dict[str, float] = field(default_factory=dict)
    """log of what each bet's beginnings have won together, by the bet's name."""
    highest: float = -math.inf
    """The most that there ever was against the node: Ville's bound is on that, not on what is left of it later."""

    def add(self, nats: Mapping[str, float], tokens: int, bets: Sequence[str]) -> None:
        """Counts a file: what each bet has won on it. A bet that was not laid keeps what it had."""
        self.files += 1
        self.tokens += tokens
        stake = -math.log(self.files * (self.files + 1))
        for name in bets:
            before = self.won.get(name, -math.inf)
            self.won[name] = _add(before, stake) + nats.get(name, 0.0)
        self.highest = max(self.highest, self.nats())

    def forget(self) -> None:
        """Lets go of what was won by odds that were too strict. Files stay counted, so later stakes stay small."""
        self.won.clear()
        self.highest = -math.inf

    def nats(self) -> float:
        """Evidence against the node: the mean of what its bets have won."""
        return mean_of(list(self.won.values())) if self.won else 0.0

    @property
    def is_over(self) -> bool:
        """Whether there was ever more against the node than an honest one has in its life, but for one in a million."""
        return max(self.highest, self.nats()) >= BAN_NATS

    @property
    def held_against(self) -> float:
        """Nats that people are shown: what there is now or, once that was too much, the most that there was."""
        return max(self.highest, self.nats()) if self.is_over else self.nats()


def mean_of(logs: Sequence[float]) -> float:
    """log of the mean of exp(x): what equal stakes on several bets have won together."""
    top = max(logs)
    if not math.isfinite(top):
        return top
    return top + math.log(sum(math.exp(x - top) for x in logs) / len(logs))


def _add(a: float, b: float) -> float:
    low, high = sorted((a, b))
    return high + math.log1p(math.exp(low - high)) if math.isfinite(low) else high
