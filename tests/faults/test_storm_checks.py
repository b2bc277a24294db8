"""The checks of a storm can fail: each is shown a run that keeps every invariant, and the same run with one broken."""

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import Connection, select, update

from shoal.config_io import check_config
from shoal.coordinator import grants, leases, nodes, verdicts
from shoal.coordinator.archive import HOME, STATE, UPLOADS
from shoal.coordinator.db import schema
from shoal.coordinator.db.database import Database
from shoal.coordinator.ledger_writer import LedgerWriter
from shoal.coordinator.outbox import remember_steps
from shoal.coordinator.policy import Terms
from shoal.coordinator.uploads import object_name
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Signed
from shoal.protocol.messages import Role
from shoal.protocol.submission import write_rollouts
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import RunDir, prepare_run
from shoal.telemetry.status import RoleStatus
from tests.faults import checks
from tests.faults.checks import Checker, People
from tests.faults.storm import config_of
from tests.support.submissions import make_submission

COORDINATOR, TRAINER, VALIDATOR, HONEST, CHEATER = (Key(bytes([n]) * 32) for n in range(1, 6))
PEOPLE = People(TRAINER.address, frozenset([VALIDATOR.address]), frozenset([HONEST.address]))
RETRACTED = "ef" * 32
NOW = 1_000_000.0
GOOD = Verdict(True, "", True)
BAD = Verdict(False, "", True, Finding("sampling", "a token is the best", 1, 2))
GONE = Verdict(False, "", False, Finding("trainer", "what is trained on is what was accepted", "accepted", "gone"))


@dataclass
class History:
    """A run's directory with a short past: step 0 is trained on two files of one node; a cheater's file is rejected,
    and one was turned down by the trainer because its version was taken back."""

    run: RunDir
    database: Database
    lineage: dict[str, dict[str, int]]

    @property
    def uploads(self) -> Path:
        return self.run.path / HOME / UPLOADS

    def checker(self) -> Checker:
        return Checker(self.run, self.uploads, PEOPLE)

    def change(self, work: Callable[[Connection], Any]) -> None:
        self.database.ask(work)

    def write_lineage(self) -> None:
        folder = self.run.checkpoints / f"step-{len(self.lineage):06d}"
        folder.mkdir(parents=True, exist_ok=True)
        state = {"version": len(self.lineage), "bad_steps": 0, "used": self.lineage, "sha256": {}}
        (folder / "state.json").write_text(json.dumps(state))


@pytest.fixture
def history(tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setattr(checks, "LOOK_AGAIN_S", 0.0)
    config = check_config({**config_of(4, 0), "model": {"source": str(tiny_dir)}}, "test")
    run = prepare_run(config, tmp_path / "run", Console(file=io.StringIO()))
    database = Database(f"sqlite:///{run.path / HOME / STATE}")
    terms = Terms.of(config, TRAINER.address, frozenset([VALIDATOR.address]))
    made = History(run, database, {"0": {"0": 0, "1": 0}})
    base = run.channel().version(0)
    assert base is not None

    def join(db: Connection, key: Key, role: Role, name: str) -> None:
        nodes.join(db, terms, Signed(key.address, key.address[2:34], NOW, ""), role, name, "", NOW)

    def hand_in(db: Connection, key: Key, weights: str, *judged: Verdict) -> None:
        node = nodes.known(db, key.address)
        granted = grants.grant(db, terms, COORDINATOR, node, 0, [], 1, NOW + 1)
        assert not isinstance(granted, grants.NoLease)
        lease = granted.lease
        submission = make_submission(lease, version=0, weights=weights)
        data = write_rollouts(submission, lease.groups)
        sha256 = hashlib.sha256(data).hexdigest()
        path = made.uploads / object_name(lease.step, lease.submission, sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        place = (lease.step, lease.submission)
        leases.take_upload(db, node, *place, sha256, len(data), lease.groups, NOW + 2, NOW + 2)
        tokens = sum(len(rollout.completion) for rollout in submission.rollouts)
        for verdict in judged:
            judge = TRAINER if verdict is GONE else VALIDATOR
            full = replace(verdict, sha256=sha256, samples=len(submission.rollouts), tokens=tokens)
            verdicts.judge(db, terms, nodes.known(db, judge.address), *place, full, NOW + 3)

    def play(db: Connection) -> None:
        join(db, TRAINER, "trainer", "trainer")
        join(db, VALIDATOR, "validator", "validator")
        join(db, HONEST, "worker", "worker-0")
        join(db, CHEATER, "worker", "cheater-0")
        leases.announce(db, terms, 0, base.root, NOW)
        for _ in range(2):
            hand_in(db, HONEST, base.root, GOOD)
        hand_in(db, HONEST, RETRACTED, GOOD, GONE)
        hand_in(db, CHEATER, base.root, BAD)
        hand_in(db, HONEST, base.root)

    database.ask(play)
    ledger_writer = LedgerWriter.open(run.path / "ledger.db", COORDINATOR, config, terms)
    database.ask(lambda db: remember_steps(db, 1))
    ledger_writer.keep(database)
    ledger_writer.close()
    (run.path / "weights" / "retracted.json").write_text(json.dumps([RETRACTED]))
    made.write_lineage()
    yield made
    database.close()


def test_a_run_that_keeps_every_invariant_has_no_faults(history: History) -> None:
    checker = history.checker()
    assert checker.faults() == []
    assert checker.faults() == []
    assert len(checker.accepted) == 2
    assert len(checker.contents) == 4  # also what was rejected: it can still be challenged


ONE = (schema.submissions.c.step == 0) & (schema.submissions.c.submission == 1)
CHEATS = schema.submissions.c.node == CHEATER.address
BREAKS: dict[str, tuple[str, Any]] = {
    "a node's file is counted twice": (
        r"worker-0: accepted is 4, its files make 3",
        update(schema.nodes)
        .where(schema.nodes.c.address == HONEST.address)
        .values(accepted=schema.nodes.c.accepted + 1),
    ),
    "a node's tokens are counted twice": (
        r"worker-0: tokens is \d+, its files make \d+",
        update(schema.nodes).where(schema.nodes.c.address == HONEST.address).values(tokens=2 * schema.nodes.c.tokens),
    ),
    "a rejection is not counted": (
        r"cheater-0: rejected is 0, its files make 1",
        update(schema.nodes).where(schema.nodes.c.address == CHEATER.address).values(rejected=0),
    ),
    "the ledger lacks a file": (
        r"ledger: submission 3/9 is missing",
        schema.submissions.insert().values(
            step=3,
            submission=9,
            node=HONEST.address,
            sha256="ab" * 32,
            size=1,
            groups=1,
            signal=1,
            received=NOW,
            kept=False,
            tokens=0,
            entered=True,
            network="",
            ordinal=9,
        ),
    ),
    "the ledger has what never was": (
        r"ledger: submission 0/1 never happened",
        update(schema.submissions).where(ONE).values(entered=False),
    ),
    "the ledger has another hash": (
        r"ledger: submission 0/1 has other bytes",
        update(schema.submissions).where(ONE).values(tokens=schema.submissions.c.tokens + 1),
    ),
    "the ledger is to be told twice": (
        r"batch 1 is to be entered twice",
        schema.outbox.insert().values(
            [{"kind": "work", "body": json.dumps({"batch": 1, "step": 1, "leaves": []})}] * 2
        ),
    ),
    "a trained file was never accepted": (
        r"trained on submission 1, which is not accepted",
        update(schema.submissions).where(ONE).values(accept=None),
    ),
    "a verdict is on other bytes": (
        r"submission 0/1 .*its verdict is on other bytes",
        update(schema.submissions).where(ONE).values(verdict=GOOD.to_json()),
    ),
    "a stranger judged": (
        r"submission 0/1 .* was judged by",
        update(schema.submissions).where(ONE).values(judge=CHEATER.address),
    ),
    "a cheater's file is accepted": (
        r"was accepted, and its maker cheats",
        update(schema.submissions).where(CHEATS).values(accept=True, verdict=GOOD.to_json()),
    ),
    "an honest file is rejected": (
        r"submission 0/1 .*is honest and was rejected: sampling",
        update(schema.submissions).where(ONE).values(accept=False, verdict=BAD.to_json()),
    ),
    "an honest node is banned": (
        r"worker-0: is honest and was banned: for nothing",
        update(schema.nodes)
        .where(schema.nodes.c.address == HONEST.address)
        .values(state="banned", reason="for nothing"),
    ),
    "a beacon was known before its lease": (
        r"lease 0/1: its beacon is another lease's as well",
        update(schema.leases).values(beacon=5),
    ),
    "a lease was given before its node joined": (
        r"lease 0/1: was given before its node joined",
        update(schema.leases).where(schema.leases.c.submission == 1).values(issued=0.0),
    ),
    "a number is left out": (
        r"leases: step \d has the numbers",
        update(schema.leases).where(schema.leases.c.submission == 1).values(submission=77),
    ),
    "a lease allows what is too old": (
        r"lease 0/1: is for version -3",
        update(schema.leases).where(schema.leases.c.submission == 1).values(version=-3),
    ),
    "a file is under another's lease": (
        r"submission 0/1: there is no used lease of its node",
        update(schema.leases).where(schema.leases.c.submission == 1).values(node=CHEATER.address),
    ),
    "a used lease has no file": (
        r"is used, and there is no file",
        update(schema.submissions).where(ONE).values(submission=99),
    ),
    "another root is announced": (
        r"version 0: announced as 000000000000, the directory has",
        update(schema.versions).values(root="00" * 32),
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_record_is_found(history: History, what: str) -> None:
    said, statement = BREAKS[what]
    history.change(lambda db: db.execute(statement))
    found(history.checker(), said)


def found(checker: Checker, said: str) -> None:
    faults = "\n".join(checker.faults())
    assert re.search(said, faults), faults


def forget_row(db: Connection) -> None:
    db.execute(schema.submissions.delete().where(ONE))


def other_hash(db: Connection) -> None:
    db.execute(update(schema.submissions).where(ONE).values(sha256="00" * 32))


def turn_down(db: Connection) -> None:
    db.execute(update(schema.submissions).where(ONE).values(accept=False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (forget_row, "submission 0/1: was accepted and is gone"),
        (other_hash, "submission 0/1: was accepted as .* and is now 000000000000"),
        (turn_down, "submission 0/1: was accepted and then turned down by 0x"),
    ],
)
def test_what_was_accepted_once_is_missed_when_it_is_gone(
    history: History, change: Callable[[Connection], None], said: str
) -> None:
    checker = history.checker()
    assert checker.faults() == []
    history.change(change)
    found(checker, said)


def test_bytes_that_are_lost_or_changed_are_found(history: History) -> None:
    path = next(history.uploads.glob("step-000000/0001-*.parquet"))
    path.write_bytes(path.read_bytes() + b"x")
    found(history.checker(), "submission 0/1: the store has other bytes")
    path.unlink()
    found(history.checker(), "submission 0/1: its bytes are not in the store")


@pytest.mark.parametrize(
    ("lineage", "said"),
    [
        ({"0": {"0": 0, "1": 1}}, "step 0 submission 1 was made with version 1"),
        ({"0": {"0": 0, "7": 0}}, "trained on submission 7, which is not accepted"),
        ({"0": {"0": 0, "2": 0}}, "trained on submission 2, which is not accepted"),
        ({"0": {}}, "step 0 was trained on nothing"),
        ({"1": {"0": 0}}, "steps \\[1\\] are not 0..0"),
    ],
)
def test_a_lineage_that_cannot_be_is_found(history: History, lineage: dict[str, dict[str, int]], said: str) -> None:
    history.lineage = lineage
    history.write_lineage()
    found(history.checker(), said)


def test_a_file_that_was_used_twice_is_found(history: History) -> None:
    first = next(history.uploads.glob("step-000000/0000-*.parquet")).stem.partition("-")[2]
    history.change(lambda db: db.execute(update(schema.submissions).where(ONE).values(sha256=first)))
    found(history.checker(), f"the file {first[:12]} was used 2 times")


def test_a_file_that_was_turned_down_and_removed_before_anybody_looked_counts_once(history: History) -> None:
    turned_down = schema.submissions.c.judge == TRAINER.address
    taken_back = replace(GONE, finding=Finding("version", "version 0 is published", RETRACTED, None))

    def remove(db: Connection) -> None:
        row = db.execute(select(schema.submissions).where(turned_down)).one()
        (history.uploads / object_name(row.step, row.submission, row.sha256)).unlink()
        verdict = replace(taken_back, sha256=row.sha256).to_json()
        db.execute(update(schema.submissions).where(turned_down).values(kept=False, verdict=verdict))

    history.change(remove)
    assert history.checker().faults() == []
    for column in (schema.nodes.c.samples, schema.nodes.c.tokens):
        more = update(schema.nodes).where(schema.nodes.c.address == HONEST.address).values({column: column + 1})
        history.change(partial(Connection.execute, statement=more))
        found(history.checker(), rf"worker-0: {column.name} is \d+, its files make \d+")


def test_weights_that_are_not_what_was_announced_are_found(history: History) -> None:
    weights = history.run.base_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    found(history.checker(), "version 0: .* is not the file that was published")


def test_an_honest_file_may_be_rejected_only_if_its_version_was_taken_back(history: History) -> None:
    (history.run.path / "weights" / "retracted.json").unlink()
    found(history.checker(), "is honest and was rejected: trainer")


@pytest.mark.parametrize(
    "change", [{"deadline": None}, {"on": ""}, {"doing": ""}, {"state": "failed"}, {"state": "unreadable"}]
)
def test_a_wait_that_does_not_say_on_whom_for_what_and_until_when_is_found(change: dict[str, Any]) -> None:
    now = time.time()
    good = RoleStatus("trainer", 1, "waiting", "coordinator http://127.0.0.1:1", "coordinator", now, now + 9, now)
    assert checks.status_faults([good]) == []
    assert len(checks.status_faults([replace(good, **change)])) == 1


@pytest.mark.parametrize(
    ("doing", "on"), [("rollouts of step 3", "worker"), ("rollout files", "worker"), ("policy version 4", "trainer")]
)
def test_files_and_versions_may_be_waited_for_without_end(doing: str, on: str) -> None:
    now = time.time()
    endless = RoleStatus("trainer", 1, "waiting", doing, on, now, None, now)
    assert checks.status_faults([endless]) == []
    assert len(checks.status_faults([replace(endless, on="")])) == 1


def test_a_traceback_in_a_log_is_found(tmp_path: Path) -> None:
    (tmp_path / "relay.log").write_text("joined\n")
    assert checks.log_faults(tmp_path) == []
    (tmp_path / "worker-0.log").write_text("joined\nTraceback (most recent call last):\n  File x\nKeyError: 3\n")
    (fault,) = checks.log_faults(tmp_path)
    assert fault.startswith("log of worker-0: joined")
