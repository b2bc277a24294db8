"""The books of a simulation give the leases that the coordinator gives: both are put before the same requests."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from shoal.coordinator import leases as leasing
from shoal.coordinator import nodes as registry
from shoal.coordinator import verdicts as judging
from shoal.coordinator.db.database import Database
from shoal.coordinator.grants import grant
from shoal.coordinator.node_states import LOST_S, State
from shoal.coordinator.policy import Terms
from shoal.crypto.signed_request import Signed
from shoal.protocol.lease import Lease
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.verdict import Verdict
from shoal.simulate.book import Book, File, LeaseRow, NodeRow, judging_order
from shoal.simulate.events import Events
from tests.support.coordinator_in_process import COORDINATOR, TRAINER, VALIDATOR, key_of, make_config

NODES = [f"node-{number}" for number in range(6)]
TOKENS = 4000
BEGIN = 1e6


class Both:
    """A coordinator's database and a simulation's books, side by side; each request is asked of both."""

    def __init__(self, database: Database, terms: Terms) -> None:
        self.database, self.terms = database, terms
        self.events = Events()
        self.book = Book(terms, self.events)
        self.rows = {name: NodeRow(number) for number, name in enumerate(NODES)}
        self.held: dict[str, list[tuple[Lease, LeaseRow]]] = {name: [] for name in NODES}
        self.files: list[tuple[Lease, File]] = []
        self._nonces = 0
        self.database.ask(self._start)

    @property
    def now(self) -> float:
        return BEGIN + self.events.now

    def _start(self, db: Connection) -> None:
        self._join(db, TRAINER.address, "trainer", "")
        self._join(db, VALIDATOR.address, "validator", "")
        for number, name in enumerate(NODES):
            self._join(db, key_of(name).address, "worker", f"198.51.{number}.0/24")
        leasing.announce(db, self.terms, 0, "ab" * 32, self.now)

    def _join(self, db: Connection, address: str, role: str, network: str) -> None:
        self._nonces += 1
        signed = Signed(address, f"{self._nonces:032x}", self.now, "")
        registry.join(db, self.terms, signed, role, "", "", self.now, network)  # type: ignore[arg-type]

    def pass_time(self, seconds: float, silent: tuple[str, ...] = ()) -> None:
        """Lets time pass; all nodes but the silent ones are heard, every ten seconds."""
        while seconds > 0:
            self._pass(min(seconds, 10.0), silent)
            seconds -= 10.0

    def _pass(self, seconds: float, silent: tuple[str, ...]) -> None:
        until = self.events.now + seconds
        self.events.run(lambda: False, until)
        self.events.now = until
        heard = [key_of(name).address for name in NODES if name not in silent]

        def work(db: Connection) -> None:
            for address in [*heard, VALIDATOR.address, TRAINER.address]:
                registry._hear(db, registry.known(db, address), self.now)
            registry.sweep(db, self.now)

        self.database.ask(work)

    def announce(self, version: int) -> None:
        self.database.ask(lambda db: leasing.announce(db, self.terms, version, "ab" * 32, self.now))
        self.book.announce(version)

    def ask(self, name: str, version: int, working_on: list[tuple[int, int]]) -> tuple[object, object]:
        """What each of the two says: step, number, groups, version and seconds of a lease, or None."""

        def work(db: Connection) -> Lease | None:
            node = registry.known(db, key_of(name).address)
            network = f"198.51.{NODES.index(name)}.0/24"
            try:
                found = grant(db, self.terms, COORDINATOR, node, version, working_on, 1, self.now, None, network)
            except Refusal as refusal:
                if refusal.code != "suspended":
                    raise
                return None
            return found.lease if isinstance(found, SignedLease) else None

        lease = self.database.ask(work)
        row = self.book.grant(self.rows[name], version, set(working_on))
        if lease is not None and isinstance(row, LeaseRow):
            self.held[name].append((lease, row))
        real = ours = None
        if lease is not None:
            lasts_s = round(lease.deadline - self.now, 3)
            real = (lease.step, lease.submission, lease.groups, lease.version, lasts_s)
        if isinstance(row, LeaseRow):
            ours = (row.step, row.submission, row.groups, row.version, round(row.until - self.events.now, 3))
        return real, ours

    def hand_in(self, name: str, signal: int) -> bool:
        lease, row = self.held[name].pop(0)
        sha256 = hashlib.sha256(f"{lease.step}/{lease.submission}".encode()).hexdigest()

        def work(db: Connection) -> bool:
            node = registry.known(db, key_of(name).address)
            try:
                leasing.take_upload(
                    db, node, lease.step, lease.submission, sha256, 1, min(signal, lease.groups), self.now, self.now
                )
            except Refusal:
                return False
            return True

        taken = self.database.ask(work)
        file = self.book.hand_in(row, min(signal, row.groups), TOKENS, self.events.now)
        assert taken == (file is not None)
        if file is not None:
            self.files.append((lease, file))
        return taken

    def judge(self) -> None:
        lease, file = self.files.pop(0)
        sha256 = hashlib.sha256(f"{lease.step}/{lease.submission}".encode()).hexdigest()

        def work(db: Connection) -> None:
            judge = registry.known(db, VALIDATOR.address)
            verdict = Verdict(True, sha256, True, samples=8, tokens=TOKENS)
            judging.judge(db, self.terms, judge, lease.step, lease.submission, verdict, self.now)

        self.database.ask(work)
        self.book.accept(file)

    def listed(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Files that wait for a verdict, in the order in which they are to be judged."""
        first, last = self.book.newest, self.book.newest + self.terms.async_level
        found = self.database.ask(lambda db: judging.filed(db, self.terms, VALIDATOR.address, first, last, accept=None))
        return (
            [(file.lease.step, file.lease.submission) for file in found],
            [file.place for file in judging_order(file for _, file in self.files)],
        )

    def counts(self) -> tuple[object, object]:
        step = self.book.newest
        return self.database.ask(lambda db: leasing.count_of(db, self.terms, step, self.now)), self.book.count_of(step)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    train, workers = {"groups_per_step": 24, "oversample": 4.0}, {"groups_per_submission": 4, "lease_s": None}
    config = make_config(steps=50, train=train, workers=workers)
    terms = Terms.of(config, TRAINER.address, frozenset([VALIDATOR.address]))
    made = Both(Database(f"sqlite:///{tmp_path / 'state.db'}"), terms)
    yield made
    made.database.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_simulation_grants_what_the_coordinator_grants(both: Both, seed: int) -> None:
    """Nodes ask, hand in, let leases expire and go on with what was given again; verdicts and versions come now and
    then. After each event both have said the same."""
    rng = random.Random(seed)
    version = granted = refused = 0
    for _ in range(150):
        name = rng.choice(NODES)
        event = rng.random()
        if event < 0.5:
            working_on = [(lease.step, lease.submission) for lease, row in both.held[name] if row.status == "open"]
            real, ours = both.ask(name, max(0, version - rng.randrange(2)), working_on)
            assert ours == real
            granted += real is not None
            refused += real is None
        elif event < 0.7 and both.held[name]:
            both.hand_in(name, rng.randrange(5))
        elif event < 0.85 and both.files:
            both.judge()
        elif event < 0.9 and version < 40:
            version += 1
            both.announce(version)
            both.files = [(lease, file) for lease, file in both.files if lease.step >= version]
        else:
            both.pass_time(rng.choice([1.0, 5.0, 20.0, 300.0]))
        real_count, our_count = both.counts()
        assert our_count == real_count
    assert granted > 10
    assert refused > 5


@pytest.mark.parametrize("seed", [1, 3, 4, 5, 6])
def test_files_wait_in_the_order_in_which_the_coordinator_lists_them(both: Both, seed: int) -> None:
    """Many files and few verdicts, so that files of several steps, versions and records wait at once."""
    rng = random.Random(seed)
    version, seen = 0, set[tuple[int, int, int]]()
    for _ in range(200):
        name, event = rng.choice(NODES), rng.random()
        if event < 0.4:
            both.ask(
                name, max(0, version - rng.randrange(2)), [(row.step, row.submission) for _, row in both.held[name]]
            )
        elif event < 0.8 and both.held[name]:
            both.hand_in(name, rng.randrange(5))
        elif event < 0.93 and both.files:
            both.judge()
        elif event > 0.93 and len(both.files) > 2:
            version += 1
            both.announce(version)
            both.files = [(lease, file) for lease, file in both.files if lease.step >= version]
        both.pass_time(1.0)
        real, ours = both.listed()
        assert ours == real
        if len(ours) > 1:
            seen |= {(file.lease.node.record, file.lease.step, file.lease.version) for _, file in both.files}
    for values in zip(*seen, strict=True):
        assert len(set(values)) > 1, "only one record, step or version waited"


def test_a_node_that_falls_silent_holds_nothing_up_in_either(both: Both) -> None:
    real, ours = both.ask("node-0", 0, [])
    assert real == ours
    assert real is not None
    both.book.leave(both.rows["node-0"], 0.0)
    for _ in range(13):
        both.pass_time(10.0, silent=("node-0",))
    assert both.rows["node-0"].state == State.GONE
    assert LOST_S < 13 * 10.0
    assert both.counts()[0] == both.counts()[1]
    assert both.book.count_of(0).leased == 0
