"""Whose turn it is to judge a file: rendezvous hashing under a secret, and takeover from a validator that is late.

Each file ranks the validators that are there by a keyed hash of its place and their addresses; the first `seats` of the
ranking judge it. So n validators share the files evenly, a validator that leaves moves its own files alone, and a file
is judged as often as it needs to be.

A file's maker cannot choose its judge. The hash is over step and number of its lease, which the coordinator deals, and
under a secret that never leaves the coordinator; nothing in the file's bytes has any part in it. Nor does a validator
know before the upload which files are its own.
"""

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from shoal.coordinator.db.database import read_fact, write_fact

Place = tuple[int, int]
SECRET = "judging turns"
# A validator with a file in hand is late after so many times the longest that one of the last files took, within these
# bounds; the first before anything was measured, when models are still being loaded.
LATE = 4.0
RECENT = 32
FIRST_S, MIN_S = 120.0, 20.0


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


def has_turn(who: str, ranked: Sequence[str], seats: int, is_late: Callable[[str], bool]) -> bool:
    """Whether a validator is to judge a file now: fewer than `seats` of those ranked before it are on time."""
    ahead = ranked[: ranked.index(who)]
    return len(ahead) < seats or sum(not is_late(other) for other in ahead) < seats


@dataclass(slots=True)
class Pace:
    """How long validators take for a file, from their verdicts; it is measured again after a restart."""

    began: float
    longest_s: float
    """Nobody is late later than this."""
    _last: dict[str, float] = field(default_factory=dict)
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def judged(self, who: str, received: float, now: float) -> None:
        """Notes a verdict: its file was in hand since it came, or since the validator's verdict before it."""
        self._took.append(max(0.0, now - self._since(who, received)))
        self._last[who] = now

    @property
    def late_s(self) -> float:
        """Seconds for which a validator may be at a file."""
        allowed = max(MIN_S, LATE * max(self._took)) if self._took else FIRST_S
        return min(allowed, self.longest_s)

    def is_late(self, who: str, received: float, now: float) -> bool:
        """Whether a validator that has had a file since then gives no verdicts, or passes this one over.

        A line of files is no reason: one that works through its own is on time, however many there are, until a file
        has waited for `longest_s`.
        """
        return now - self._since(who, received) > self.late_s or now - max(received, self.began) > self.longest_s

    def _since(self, who: str, received: float) -> float:
        return max(received, self._last.get(who, self.began))


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn it is, as of now."""

    secret: bytes
    pace: Pace

    def ranking(self, step: int, submission: int, validators: Collection[str]) -> list[str]:
        return ranking(self.secret, (step, submission), validators)

    def has_turn(self, who: str, ranked: Sequence[str], seats: int, received: float, now: float) -> bool:
        return has_turn(who, ranked, seats, lambda other: self.pace.is_late(other, received, now))
