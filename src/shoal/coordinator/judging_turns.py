"""Whose turn it is to judge a file: rendezvous hashing under a secret, hands of a few files, and takeover.

Each file ranks the validators that are there by a keyed hash of its place and their addresses; the first `seats` of the
ranking are the ones to judge it. A validator holds few files at a time, and what it holds nobody else is given. So a
file is judged as often as it needs to be, a validator that leaves moves its own files alone, and one that is late, or
dead, loses what it holds to the next of the ranking.

A file's maker cannot choose its judge. The hash is over step and number of its lease, which the coordinator deals, and
under a secret that never leaves the coordinator; nothing in the file's bytes has any part in it. Nor does a validator
know before the upload which files are its own.
"""

import hashlib
import hmac
import secrets
from collections import Counter, deque
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TypeVar

from sqlalchemy import Connection

from shoal.coordinator.db.database import read_fact, write_fact

Place = tuple[int, int]
T = TypeVar("T")
SECRET = "judging turns"
# A validator with a file in hand is late after so many times the longest that one of the last files took, within these
# bounds; the first before anything was measured, when models are still being loaded.
LATE = 4.0
RECENT = 32
FIRST_S, MIN_S = 120.0, 20.0
MAX_HELD = 10_000
PROVEN_PER_NEWCOMER = 7


def opened_secret(db: Connection) -> bytes:
    """The run's secret, drawn once: after a restart each file has the same judge as before."""
    if (found := read_fact(db, SECRET)) is None:
        found = secrets.token_hex(32)
        write_fact(db, SECRET, found)
    return bytes.fromhex(found)


def ranking(secret: bytes, place: Place, validators: Collection[str]) -> list[str]:
    """Validators in the order in which they are to judge a file. Without one of them, the others keep their order."""

    def score(address: str) -> bytes:
        step, submission = place
        return hmac.digest(secret, f"{step} {submission} {address}".encode(), hashlib.sha256)

    return sorted(validators, key=score)


def mixed(proven: Sequence[T], others: Sequence[T]) -> list[T]:
    """Files in the order of judging, with one of a node without a record after every few of nodes with one: a hand of
    files holds some of both, and who is new does not wait for ever."""
    rest = iter(others)
    found: list[T] = []
    for start in range(0, len(proven), PROVEN_PER_NEWCOMER):
        found += [*proven[start : start + PROVEN_PER_NEWCOMER], *islice(rest, 1)]
    return [*found, *rest]


@dataclass(slots=True)
class Pace:
    """How long validators take for a file, from their verdicts; it is measured again after a restart."""

    longest_s: float
    """Nobody may hold a file for longer."""
    _last: dict[str, float] = field(default_factory=dict)
    _allowed_s: float = FIRST_S
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def judged(self, who: str, since: float, now: float) -> None:
        """Notes a verdict on a file that was held since then."""
        self._took.append(max(0.0, now - max(since, self._last.get(who, since))))
        self._allowed_s = max(MIN_S, LATE * max(self._took))
        self._last[who] = now

    @property
    def late_s(self) -> float:
        """Seconds for which a validator may hold a file without giving a verdict on any."""
        return min(self._allowed_s, self.longest_s)

    def is_late(self, who: str, since: float, now: float) -> bool:
        """Whether a validator that holds a file since then gives no verdicts, or passes this one over."""
        return now - max(since, self._last.get(who, since)) > self.late_s or now - since > self.longest_s


@dataclass(slots=True)
class Turns:
    """Who holds which files; what a coordinator forgets when it restarts is dealt again, to the same validators."""

    secret: bytes
    pace: Pace
    seats: int
    """Validators that judge each file."""
    steals: bool
    """Whether a validator without files of its own takes those that another one has no hand free for. Not where
    validators do not trust each other: one that asks often would get files that are not its own."""
    _held: dict[Place, dict[str, float]] = field(default_factory=dict)
    """Since when each file is held by whom; for ever by one that has given its verdict."""
    _hands: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)
    _ranked: dict[Place, dict[str, None]] = field(default_factory=dict)
    """Rankings of files that wait, so that each validator's hash is made once per file and not with every question."""

    def ranked(self, place: Place, validators: Set[str], most: int | None = None) -> list[str]:
        """The first of `ranking` under this run's secret; all, unless it is said how many."""
        known = self._ranked.get(place)
        if known is None or not known.keys() >= validators:
            known = dict.fromkeys(ranking(self.secret, place, {*(known or ()), *validators}))
            self._ranked[place] = known
        return list(islice((who for who in known if who in validators), most))

    def asks(self, who: str, hand: int, now: float) -> None:
        """Notes that a validator is there to judge so many files at a time."""
        self._hands[who], self._asked[who] = hand, now

    def deal(self, who: str, waiting: Sequence[Place], there: Collection[str], hand: int, now: float) -> list[Place]:
        """Files that `who` is to judge now, at most `hand` of them but for those that it held before.

        `waiting` are those that it has not judged, in the order in which they are to be judged, and `there` the
        validators whose heartbeats come, itself among them.
        """
        self.asks(who, hand, now)
        self._tidy(waiting)
        holding = Counter(other for place in waiting for other in self._held.get(place, ()))
        at_work = self._active(waiting, there, now)
        mine = [place for place in waiting if who in self._held.get(place, ())]
        own: list[Place] = []
        late: list[Place] = []
        spare: list[Place] = []
        for place in waiting:
            held = self._held.get(place, {})
            if who in held or sum(self._on_time(other, held, at_work, now) for other in held) >= self.seats:
                continue
            first = self.ranked(place, at_work, self.seats)
            if who in first:
                own.append(place)
            elif held and self._is_next(who, place, at_work, held, now):
                late.append(place)
            elif self.steals and holding[first[0]] >= self._hands.get(first[0], 1):
                spare.append(place)
        # From the far end of another's line: it works from the near one.
        taken = [*own, *late, *reversed(spare)][: max(0, hand - len(mine))]
        for place in taken:
            self._held.setdefault(place, {})[who] = now
        return [*mine, *taken]

    def judged(self, who: str, place: Place, received: float, now: float) -> None:
        """Notes a verdict, also one on a file that its validator was not dealt."""
        held = self._held.setdefault(place, {})
        self._ranked.pop(place, None)
        since = held.get(who, received)
        self.pace.judged(who, received if since == inf else since, now)
        held[who] = inf

    def _active(self, waiting: Sequence[Place], there: Collection[str], now: float) -> set[str]:
        """Those of the validators that ask for files, or are at one: not one that is still loading its model."""
        asked = {who for who in there if now - self._asked.get(who, -inf) <= self.pace.late_s}
        held = [self._held.get(place, {}) for place in waiting]
        return asked | {who for one in held for who in one if one[who] < inf and self._on_time(who, one, there, now)}

    def _on_time(self, who: str, held: dict[str, float], there: Collection[str], now: float) -> bool:
        return held[who] == inf or (who in there and not self.pace.is_late(who, held[who], now))

    def _is_next(self, who: str, place: Place, there: Set[str], held: dict[str, float], now: float) -> bool:
        """Whether all ranked before `who`, but for as many as still judge it, have had the file and were late."""
        ranked = self.ranked(place, there)
        ahead = ranked[: ranked.index(who)]
        return sum(other not in held or self._on_time(other, held, there, now) for other in ahead) < self.seats

    def _tidy(self, waiting: Sequence[Place]) -> None:
        if max(len(self._held), len(self._ranked)) > MAX_HELD:
            first = min((step for step, _ in waiting), default=0)
            self._held = {place: held for place, held in self._held.items() if place[0] >= first}
            self._ranked = {place: ranked for place, ranked in self._ranked.items() if place[0] >= first}
