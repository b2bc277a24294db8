"""Numeric evidence of several validators on one node: one account, in the order in which its files were handed in.

Validators that share a run's files each see a part of a node's. Evidence is added up over all of them, so a cheat is
found after as many files as one validator would need. That an honest node is banned with a probability of at most
1e-6 rests on the order in which files are counted: each bet is fair given all files that were counted before, if what a
file shows has no part in when it is counted. Verdicts do not come in such an order, because a file that looks odd takes
longer. So files are counted in the order of their uploads, and one that was judged early is held back until those
before it are known; the account is then the one that a single validator would have, no matter who judged which file.

A file that is held back is still judged by what it shows itself. It only counts against its node later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.validate.numerics.account import Account
from shoal.validate.numerics.judge import BETS, Weighed

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """What one file of a node showed; no evidence if nothing of it was computed."""

    step: int
    nats: Mapping[str, float] | None
    tokens: int
    rates: int


@dataclass(slots=True)
class _Line:
    """A node's files: those that are counted, and those held back, by their numbers from 1 on."""

    account: Account = field(default_factory=Account)
    counted: int = 0
    held: dict[int, Shown] = field(default_factory=dict)


class SharedEvidence:
    """Accounts of nodes, from what all validators said of their files."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._ordinals: dict[Place, int] = {}
        self._rates = 0

    def of(self, node: str) -> Account:
        """What there is against a node; an empty account if nothing was computed yet."""
        return self._lines[node].account if node in self._lines else Account()

    def listed(self, step: int, submission: int, ordinal: int) -> None:
        """Learns which of its node's files this is, before it is judged."""
        self._ordinals[step, submission] = ordinal

    def with_file(self, node: str, step: int, submission: int, weighed: Weighed) -> Account:
        """What there would be against a node with this file; without it where files before it are not known yet."""
        line = self._lines.get(node, _Line())
        if self._ordinals.get((step, submission)) != line.counted + 1:
            return line.account
        account = replace(line.account, won=dict(line.account.won))
        account.add(weighed.nats, weighed.tokens, BETS)
        return account

    def add(self, node: str, step: int, submission: int, weighed: Weighed) -> Account:
        """The same: a file is counted when its verdict has come back, which another validator may have given first."""
        return self.with_file(node, step, submission, weighed)

    def take(self, node: str, ordinal: int, shown: Shown) -> None:
        """Counts a file that has its verdict, once all before it are counted; a second time changes nothing."""
        line = self._lines.setdefault(node, _Line())
        if ordinal > line.counted:
            line.held.setdefault(ordinal, shown)
            self._count(line)

    def give_up(self, before: int, spread: int) -> None:
        """Waits no longer for files of steps before this one, which nobody judges any more.

        A file that was handed in before another one is for a step of at most `spread` more.
        """
        self._ordinals = {place: n for place, n in self._ordinals.items() if place[0] >= before - spread}
        for line in self._lines.values():
            while line.held and line.held[first := min(line.held)].step + spread < before:
                line.counted = first - 1
                self._count(line)

    def loosened(self, version: int) -> None:
        """Forgets what odds of an earlier version of the honest rates have won: they may have been too strict."""
        if version > self._rates:
            self._rates = version
            for line in self._lines.values():
                line.account.forget()

    def _count(self, line: _Line) -> None:
        while (shown := line.held.pop(line.counted + 1, None)) is not None:
            line.counted += 1
            if shown.nats is not None:
                line.account.add(shown.nats if shown.rates >= self._rates else {}, shown.tokens, BETS)
