"""Invariants 1 to 8 of the design, checked from the outside: a run's checkpoints, weights, logs and statuses against
its coordinator's database and object store.

Each check is a function of what was read and gives the faults it found, one sentence each. `Checker` reads, and
remembers what it saw, for what was accepted once must stay so.
"""

import io
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import Row, select

from shoal.coordinator.archive import reading
from shoal.coordinator.db.schema import leases, nodes, outbox, submissions, versions
from shoal.coordinator.uploads import object_name
from shoal.errors import ShoalError
from shoal.files import sha256_file
from shoal.ledger.export import verify_file
from shoal.ledger.state import State
from shoal.protocol.verdict import Verdict
from shoal.protocol.version_directory import RETRACTED
from shoal.rundir import RunDir
from shoal.telemetry.status import RoleStatus, read_status

Place = tuple[int, int]
"""Step and number of a submission."""
Rows = list[Row[Any]]
LOOK_AGAIN_S = 0.5
# Strangers can keep files away, and with them versions: these are waited for as long as the coordinator answers.
COMES_LATE = re.compile(r"\b(files|rollouts|version)\b")
ATTEMPTS = 20
# What became of leases for which there is a file.
FILED = ("used", "refused", "redone")


@dataclass(frozen=True, slots=True)
class Records:
    """The coordinator's database at one moment."""

    nodes: Rows
    versions: Rows
    leases: Rows
    submissions: Rows
    outbox: Rows
    ledger: State
    """What the ledger's entries add up to, each of them checked."""

    def named(self) -> dict[Place, Row[Any]]:
        return {(row.step, row.submission): row for row in self.submissions}


@dataclass(frozen=True, slots=True)
class Content:
    """What a rollout file holds, counted without the code that counts for the coordinator."""

    samples: int
    tokens: int
    weights: str


@dataclass(frozen=True, slots=True)
class People:
    """Who is who, by address."""

    trainer: str
    validators: frozenset[str]
    honest: frozenset[str]
    """Any other node that submits something cheats."""


def read_records(run: RunDir) -> Records:
    with reading(run) as db:
        db.exec_driver_sql("BEGIN")  # one moment for all tables
        tables = (nodes, versions, leases, submissions, outbox)
        rows = {table.name: list(db.execute(select(table))) for table in tables}
    return Records(**rows, ledger=verify_file(run.path / "ledger.db").state)


def read_lineage(checkpoints: Path) -> dict[int, dict[int, int]]:
    """What each step of the newest checkpoint was trained on: step to submission to version."""
    for _ in range(ATTEMPTS):
        folders = sorted(checkpoints.glob("step-*"))
        if not folders:
            return {}
        try:
            state = json.loads((folders[-1] / "state.json").read_text())
        except FileNotFoundError:  # it was replaced or cleared away meanwhile
            time.sleep(0.05)
            continue
        used = {int(step): {int(s): int(v) for s, v in made.items()} for step, made in state["used"].items()}
        assert state["version"] == int(folders[-1].name.removeprefix("step-"))
        return used
    raise AssertionError(f"{checkpoints}: no checkpoint could be read in {ATTEMPTS} attempts")


def read_content(data: bytes) -> Content:
    table = pq.read_table(io.BytesIO(data))
    weights = (table.schema.metadata or {}).get(b"shoal.weights", b"").decode(errors="replace")
    return Content(table.num_rows, sum(len(tokens) for tokens in table.column("completion").to_pylist()), weights)


def lineage_faults(lineage: Mapping[int, Mapping[int, int]], records: Records, async_level: int) -> list[str]:
    """Invariant 1: only accepted files, each once, none older than the async level."""
    faults, named = [], records.named()
    if sorted(lineage) != list(range(len(lineage))):
        faults.append(f"lineage: steps {sorted(lineage)} are not 0..{len(lineage) - 1}, each once")
    used: Counter[str] = Counter()
    for step, made in lineage.items():
        if not made:
            faults.append(f"lineage: step {step} was trained on nothing")
        for number, version in made.items():
            row = named.get((step, number))
            if row is None or not row.accept:
                faults.append(f"lineage: step {step} was trained on submission {number}, which is not accepted")
                continue
            used[row.sha256] += 1
            if not step - async_level <= version <= step:
                faults.append(f"lineage: step {step} submission {number} was made with version {version}")
    return faults + [f"lineage: the file {sha256[:12]} was used {n} times" for sha256, n in used.items() if n > 1]


def lease_faults(records: Records, async_level: int) -> list[str]:
    """Invariant 2, as far as it shows: what work is drawn from was fixed by the coordinator, after the node joined."""
    faults = []
    joined = {row.address: row.joined for row in records.nodes}
    # A draw that was let go is given again, under a lease that names the first one that had it.
    firsts: defaultdict[int, list[str]] = defaultdict(list)
    for row in records.leases:
        if not row.draw_of:
            firsts[row.beacon].append(f"{row.step}/{row.submission}")
    held = {(row.step, row.submission): row for row in records.leases}
    for step, found in groupby(sorted(held), key=lambda place: place[0]):
        numbers = [number for _, number in found]
        if numbers != list(range(len(numbers))):
            faults.append(f"leases: step {step} has the numbers {numbers}, expected 0..{len(numbers) - 1}")
    for (step, number), row in held.items():
        name = f"lease {step}/{number}"
        if row.node not in joined:
            faults.append(f"{name}: was given to {row.node}, who never joined")
            continue
        if firsts[row.beacon] != [row.draw_of or f"{step}/{number}"]:
            faults.append(f"{name}: its beacon is another lease's as well")
        if row.issued < joined[row.node]:
            faults.append(f"{name}: was given before its node joined")
        if not max(0, step - async_level) <= row.version <= step:
            faults.append(f"{name}: is for version {row.version}")
        if not row.issued < row.deadline <= row.until:
            faults.append(f"{name}: issued {row.issued}, deadline {row.deadline}, good until {row.until}")
    for place, file in records.named().items():
        lease = held.get(place)
        if lease is None or lease.node != file.node or lease.status not in FILED or lease.groups != file.groups:
            faults.append(f"submission {place[0]}/{place[1]}: there is no used lease of its node for it")
    used = {place for place, row in held.items() if row.status in FILED}
    faults += [f"lease {step}/{n}: is used, and there is no file" for step, n in used - records.named().keys()]
    return faults


def verdict_faults(
    records: Records, people: People, contents: Mapping[str, Content], retracted: Iterable[str]
) -> list[str]:
    """Invariants 3 and 8: honest work is never called a cheat, and nothing else is ever accepted."""
    faults, gone = [], set(retracted)
    for (step, number), row in records.named().items():
        name = f"submission {step}/{number} of {row.node}"
        if row.accept is None:
            continue
        verdict = Verdict.from_json(row.verdict)
        if verdict.accept != row.accept or (row.accept and verdict.sha256 != row.sha256):
            faults.append(f"{name}: its verdict is on other bytes, or another one")
        if row.judge not in people.validators and (row.accept or row.judge != people.trainer):
            faults.append(f"{name}: was judged by {row.judge}, who is not a validator")
        if row.accept and row.node not in people.honest:
            faults.append(f"{name}: was accepted, and its maker cheats")
        if not row.accept and row.node in people.honest:
            content, finding = contents.get(row.sha256), verdict.finding
            # Of a file that was removed since, the verdict tells which weights it was made with.
            told = finding.claimed if finding is not None and finding.check == "version" else None
            if (content.weights if content is not None else told) not in gone:
                faults.append(f"{name}: is honest and was rejected: {verdict.reason}")
    return faults + [
        f"node {node.address} {node.name}: is honest and was banned: {node.reason}"
        for node in records.nodes
        if node.state == "banned" and node.address in people.honest
    ]


def counter_faults(records: Records, trainer: str, contents: Mapping[str, Content], group_size: int) -> list[str]:
    """Invariant 6: each accepted rollout counts exactly once for its node, as the files themselves have it.

    A file that the trainer turned down may be removed before it is read here: it had whole groups, and the tokens that
    the coordinator noted of it.
    """
    want: dict[str, Counter[str]] = {row.address: Counter() for row in records.nodes}
    for row in records.named().values():
        if row.accept is None:
            continue
        mine = want.setdefault(row.node, Counter())
        if row.accept or row.judge == trainer:  # what the trainer turned down later still was good work
            content = contents.get(row.sha256)
            mine += Counter(accepted=1)
            if content is not None:
                mine += Counter(samples=content.samples, tokens=content.tokens)
            elif not row.accept and not row.kept:
                mine += Counter(samples=row.groups * group_size, tokens=row.tokens)
        else:
            mine += Counter(rejected=1)
    faults = []
    for node in records.nodes:
        for name in ("accepted", "rejected", "samples", "tokens"):
            if (found := getattr(node, name)) != want[node.address][name]:
                expected = want[node.address][name]
                faults.append(f"node {node.address} {node.name}: {name} is {found}, its files make {expected}")
    return faults


def ledger_faults(records: Records, trainer: str) -> list[str]:
    """Invariant 6 for the ledger: what happened is entered or about to be, once, nothing else is; money adds up."""
    ledger, files = records.ledger, records.named()
    due = [(row.kind, json.loads(row.body)) for row in records.outbox]
    entered = {(batch.step, leaf.submission): leaf for batch in ledger.batches for leaf in batch.leaves}
    numbers = [body["batch"] for kind, body in due if kind == "work" and body["batch"] >= len(ledger.batches)]
    faults = [f"ledger: batch {number} is to be entered twice" for number in set(numbers) if numbers.count(number) > 1]
    waiting = [(b["step"], leaf["submission"]) for kind, b in due if kind == "work" for leaf in b["leaves"]]
    counts = Counter((batch.step, leaf.submission) for batch in ledger.batches for leaf in batch.leaves)
    faults += [f"ledger: submission {s}/{n} is entered {many} times" for (s, n), many in counts.items() if many > 1]
    told = {*entered, *waiting}
    faults += [
        f"ledger: submission {s}/{n} is missing" for (s, n), row in files.items() if row.entered and (s, n) not in told
    ]
    for (step, number), leaf in entered.items():
        row = files.get((step, number))
        if row is None or not row.entered:
            faults.append(f"ledger: submission {step}/{number} never happened")
        elif (leaf.node, leaf.sha256, leaf.tokens) != (row.node, row.sha256, row.tokens):
            faults.append(f"ledger: submission {step}/{number} has other bytes, tokens or another owner there")
    for batch in ledger.batches:
        for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=bool(batch.outcomes)):
            row = files.get((batch.step, leaf.submission))
            good = row is not None and (row.accept or row.judge == trainer)
            if outcome != "v" and (outcome == "a") != good:
                faults.append(
                    f"ledger: submission {batch.step}/{leaf.submission} is {outcome!r}, its verdict says otherwise"
                )
    if ledger.total() != ledger.brought_in - ledger.paid_out:
        faults.append(f"ledger: {ledger.total()} credits, {ledger.brought_in} came in and {ledger.paid_out} went out")
    return faults


def memory_faults(seen: Mapping[Place, tuple[str, str]], records: Records, people: People) -> list[str]:
    """Invariant 6: what was seen accepted stays so, with the same bytes; the trainer alone may turn it down."""
    faults, named = [], records.named()
    for (step, number), (node, sha256) in seen.items():
        row = named.get((step, number))
        if row is None:
            faults.append(f"submission {step}/{number}: was accepted and is gone")
        elif (row.node, row.sha256) != (node, sha256):
            faults.append(f"submission {step}/{number}: was accepted as {sha256[:12]} and is now {row.sha256[:12]}")
        elif not row.accept and row.judge != people.trainer:
            faults.append(f"submission {step}/{number}: was accepted and then turned down by {row.judge}")
    return faults


def store_faults(records: Records, store: Path) -> list[str]:
    """Invariant 6: the bytes of what was handed in are there, and are those that were handed in."""
    faults = []
    for (step, number), row in records.named().items():
        if not row.kept:
            continue
        path = store / object_name(step, number, row.sha256)
        try:
            found = sha256_file(path)
        except OSError as error:
            faults.append(f"submission {step}/{number}: its bytes are not in the store ({error.strerror})")
            continue
        if found != row.sha256 or path.stat().st_size != row.size:
            faults.append(f"submission {step}/{number}: the store has other bytes for it, {found[:12]}")
    return faults


def root_faults(announced: Mapping[int, str], run: RunDir) -> list[str]:
    """Invariants 4 and 5: what was announced is what the trainer's directory holds, by the hash of its content."""
    faults, channel = [], run.channel()
    for number, root in announced.items():
        version = channel.version(number)
        if version is None:  # pruned, or taken back
            continue
        if version.root != root:
            faults.append(f"version {number}: announced as {root[:12]}, the directory has {version.root[:12]}")
            continue
        try:
            channel.fetch(version)
        except ShoalError as error:
            if channel.version(number) == version:
                faults.append(f"version {number}: {error}")
    return faults


def status_faults(statuses: Sequence[RoleStatus]) -> list[str]:
    """Invariant 7: every wait says for what and on whom, and until when unless it is for files or versions."""
    return [
        f"status of {status.role}: waits for {status.doing!r} on {status.on!r} until {status.deadline}"
        for status in statuses
        if status.state == "waiting"
        and not (status.on and status.doing and (status.deadline is not None or COMES_LATE.search(status.doing)))
    ] + [f"status of {s.role}: {s.doing}" for s in statuses if s.state in ("failed", "unreadable")]


def log_faults(folder: Path, most: int = 2000) -> list[str]:
    """Invariant 8: no role ends, or goes on, with an error that is a defect of ours."""
    faults = []
    for path in sorted(folder.glob("*.log")):
        text = path.read_text(errors="replace")
        if (at := text.find("Traceback (most recent call last)")) >= 0:
            faults.append(f"log of {path.stem}: {text[max(0, at - 300) : at + most]}")
    return faults


@dataclass(slots=True)
class Checker:
    """Looks at a run again and again."""

    run: RunDir
    store: Path
    people: People
    accepted: dict[Place, tuple[str, str]] = field(default_factory=dict)
    contents: dict[str, Content] = field(default_factory=dict)
    checks: int = 0

    def faults(self) -> list[str]:
        """What is wrong now. A fault that is gone a moment later was a change between two reads and does not count."""
        found = self._look()
        if found:
            time.sleep(LOOK_AGAIN_S)
            again = set(self._look())
            found = [fault for fault in found if fault in again]
        return found

    def _look(self) -> list[str]:
        self.checks += 1
        retracted = self._retracted()
        lineage = read_lineage(self.run.checkpoints)  # before the database: what it names was accepted by then
        records = read_records(self.run)
        async_level = self.run.config.async_level
        self._read_contents(records)
        faults = [
            *lineage_faults(lineage, records, async_level),
            *lease_faults(records, async_level),
            *verdict_faults(records, self.people, self.contents, [*retracted, *self._retracted()]),
            *counter_faults(records, self.people.trainer, self.contents, self.run.config.sampling.group_size),
            *ledger_faults(records, self.people.trainer),
            *memory_faults(self.accepted, records, self.people),
            *store_faults(records, self.store),
            *root_faults({row.number: row.root for row in records.versions}, self.run),
            *status_faults([s for s in read_status(self.run.path) if not s.role.startswith("cheater")]),
            *log_faults(self.run.path / "logs"),
        ]
        now = {place: (row.node, row.sha256) for place, row in records.named().items() if row.accept}
        self.accepted = now | self.accepted  # what was seen first counts
        return faults

    def _read_contents(self, records: Records) -> None:
        for (step, number), row in records.named().items():
            if row.accept is not None and row.kept and row.sha256 not in self.contents:
                try:
                    data = (self.store / object_name(step, number, row.sha256)).read_bytes()
                    self.contents[row.sha256] = read_content(data)
                except (OSError, ValueError, KeyError):  # rubbish; if it was accepted its counts will not fit
                    continue

    def _retracted(self) -> list[str]:
        try:
            return list(map(str, json.loads((self.run.path / "weights" / RETRACTED).read_text())))
        except FileNotFoundError:
            return []
