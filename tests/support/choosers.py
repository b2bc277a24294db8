"""A Sybil that looks at its draws before it does them, beside an honest node: the coordinator's own functions, one
transaction per round, without sockets and models.

A lease's reward follows from its seed, as a file's mean reward does, and a little from its version: 0.5 on average with
a standard deviation of 0.12 between files, nine tenths of the variance from tasks and noise. Looking costs nothing, and
all keys compute as fast as the honest node: what a Sybil gains here is the most that it could.
"""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import Connection

from shoal.coordinator import draws
from shoal.coordinator import leases as leasing
from shoal.coordinator import nodes as registry
from shoal.coordinator import verdicts as judging
from shoal.coordinator.db.database import Database
from shoal.coordinator.grants import grant
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Signed
from shoal.protocol.lease import Lease
from shoal.protocol.messages import Role
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.verdict import MARGIN, Finding, Verdict
from tests.support.coordinator_in_process import COORDINATOR, TRAINER, VALIDATOR, key_of

MEAN, SPREAD, KEPT = 0.5, 0.12, 0.9
ROUND_S = 40.0
ROUNDS_PER_STEP = 4
SYBIL, HONEST = "198.51.100.0/24", "203.0.113.0/24"
HONEST_NODE = "honest"
OFF_BY_LITTLE = Finding(MARGIN, "a claimed log-prob is near the recomputed one", -1.003, -1.0, 0)


def reward(lease: Lease) -> float:
    """The mean reward of the file that a lease asks for."""
    drawn = random.Random(lease.seed).gauss()
    own = random.Random(lease.seed ^ (lease.version + 1) << 64).gauss()
    return MEAN + SPREAD * (math.sqrt(KEPT) * drawn + math.sqrt(1 - KEPT) * own)


Drops = Literal["expire", "spoil", "hand back"]
Likes = Callable[["Market", str, Lease], bool]


@dataclass
class Market:
    """One run in which all nodes ask for work each round: what each handed in, and what it earned."""

    database: Database
    terms: Terms
    likes: Likes
    """Whether the Sybil hands in a lease with one of its keys."""
    keys: list[str]
    drops: Drops = "expire"
    """What becomes of a draw that it does not like: it expires, its file is rejected without blame, it is handed
    back."""
    apart: bool = False
    """Whether each of the Sybil's keys asks from a network of its own; all ask from one otherwise."""
    now: float = 1e6
    version: int = 0
    rounds: int = 0
    handed_in: dict[str, list[float]] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)
    """What each draw would have earned that the Sybil was given, by its seed."""
    _nonces: int = 0

    def start(self) -> None:
        def work(db: Connection) -> None:
            self._join(db, TRAINER, "trainer", "")
            self._join(db, VALIDATOR, "validator", "")
            leasing.announce(db, self.terms, 0, "ab" * 32, self.now)

        self.database.ask(work)
        self.join([HONEST_NODE])

    def join(self, names: list[str]) -> None:
        def work(db: Connection) -> None:
            for name in names:
                self._join(db, key_of(name), "worker", self.network_of(name))

        self.database.ask(work)

    def network_of(self, name: str) -> str:
        if name == HONEST_NODE:
            return HONEST
        return f"198.18.{self.keys.index(name)}.0/24" if self.apart else SYBIL

    def _join(self, db: Connection, key: Key, role: Role, network: str) -> None:
        self._nonces += 1
        signed = Signed(key.address, f"{self._nonces:032x}", self.now, "")
        registry.join(db, self.terms, signed, role, "", "", self.now, network)

    def round(self) -> None:
        """Everybody asks once, and does its lease or leaves it."""
        self.database.ask(self._round)
        self.rounds += 1
        self.now += ROUND_S
        if self.rounds % ROUNDS_PER_STEP == 0 and self.version + 1 < self.terms.steps:
            self.version += 1
            self.database.ask(lambda db: leasing.announce(db, self.terms, self.version, "ab" * 32, self.now))

    def _round(self, db: Connection) -> None:
        registry.sweep(db, self.now)
        for name in [HONEST_NODE, *self.keys]:
            lease = self._ask(db, name, self.network_of(name))
            if lease is None:
                continue
            if name != HONEST_NODE:
                self.seen.setdefault(lease.seed, reward(lease))
                if not self.likes(self, name, lease):
                    if self.drops == "spoil":
                        self._hand_in(db, name, lease, OFF_BY_LITTLE)
                    elif self.drops == "hand back":
                        draws.hand_back(db, key_of(name).address, self.now)
                    continue
            self._hand_in(db, name, lease)

    def _ask(self, db: Connection, name: str, network: str) -> Lease | None:
        node = registry.known(db, key_of(name).address)
        registry._hear(db, node, self.now)
        try:
            answer = grant(db, self.terms, COORDINATOR, node, self.version, [], 1, self.now, None, network)
        except Refusal as refusal:
            if refusal.code != "suspended":
                raise
            return None
        return answer.lease if isinstance(answer, SignedLease) else None

    def _hand_in(self, db: Connection, name: str, lease: Lease, fault: Finding | None = None) -> None:
        node = registry.known(db, key_of(name).address)
        sha256 = hashlib.sha256(f"{lease.step}/{lease.submission}".encode()).hexdigest()
        leasing.take_upload(db, node, lease.step, lease.submission, sha256, 1, lease.groups, self.now, self.now)
        judge = registry.known(db, VALIDATOR.address)
        verdict = Verdict(fault is None, sha256, True, fault)
        judging.judge(db, self.terms, judge, lease.step, lease.submission, verdict, self.now)
        if fault is None:
            self.handed_in.setdefault(name, []).append(reward(lease))

    def of_sybil(self) -> list[float]:
        return [reward for name in self.keys for reward in self.handed_in.get(name, [])]

    def of_honest(self) -> list[float]:
        return self.handed_in.get(HONEST_NODE, [])

    def gain(self) -> tuple[float, float]:
        """How far the mean of what the Sybil handed in is above that of all its draws, as a share, and two standard
        errors of that."""
        drawn = sum(self.seen.values()) / len(self.seen)
        handed_in = self.of_sybil()
        mean = sum(handed_in) / len(handed_in)
        let_go = 1 - len(handed_in) / len(self.seen)
        error = SPREAD * math.sqrt(let_go / len(handed_in))
        return mean / drawn - 1, 2 * error / drawn
