"""Transactional outbox: pending ledger entries, written in the same transaction as the change they record."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from shoal.coordinator.db import queries
from shoal.coordinator.db.database import Database, read_fact, write_fact
from shoal.coordinator.db.schema import outbox, plants, submissions, votes
from shoal.ledger.acts import MAX_LEAVES
from shoal.protocol.verdict import NOBODYS_FAULT, Verdict

MAX_TOLD = 500
BATCHES, ENTERED, CLOSED = "batches", "entered steps", "closed steps"
WORK, CLOSE = "work", "close"


def remember(db: Connection, kind: str, **arguments: Any) -> None:
    db.execute(queries.TO_TELL, {"kind": kind, "body": json.dumps(arguments)})


def remember_steps(db: Connection, before: int) -> None:
    """Notes the files of all steps before this one that have a verdict and are not noted yet, step by step.

    A step without files is noted too: the ledger's clock counts steps. After the end nothing is.
    """
    if closed_at(db) is not None:
        return
    judged = (submissions.c.step < before) & submissions.c.judged.is_not(None) & ~submissions.c.entered
    rows = db.execute(select(submissions).where(judged).order_by(submissions.c.step, submissions.c.submission)).all()
    if rows:
        db.execute(submissions.update().where(judged).values(entered=True))
    first = int(read_fact(db, ENTERED) or 0)
    steps = sorted({*range(first, before), *(row.step for row in rows)})
    for step in steps:
        files = [row for row in rows if row.step == step]
        for start in range(0, max(1, len(files)), MAX_LEAVES):
            _remember_batch(db, step, files[start : start + MAX_LEAVES])
    write_fact(db, ENTERED, str(max(first, before)))


def remember_end(db: Connection, steps: int) -> None:
    """Notes that the run is over after so many steps, whose files are noted: the ledger is closed."""
    if closed_at(db) is None:
        remember(db, CLOSE)
        write_fact(db, CLOSED, str(steps))


def closed_at(db: Connection) -> int | None:
    """After how many steps the run was over; None while it is not."""
    steps = read_fact(db, CLOSED)
    return None if steps is None else int(steps)


def _remember_batch(db: Connection, step: int, files: Sequence[Row[tuple[Any, ...]]]) -> None:
    batch = int(read_fact(db, BATCHES) or 0)
    leaves = [
        {"submission": row.submission, "node": row.node, "sha256": row.sha256, "tokens": row.tokens} for row in files
    ]
    remember(db, WORK, batch=batch, step=step, leaves=leaves, plants=_plants_of(db, step, files))
    write_fact(db, BATCHES, str(batch + 1))


def _plants_of(db: Connection, step: int, files: Sequence[Row[tuple[Any, ...]]]) -> list[tuple[str, list[str]]]:
    """What each file was planted as, and who has judged it; nothing where none was planted."""
    letters: dict[int, str] = dict(
        db.execute(select(plants.c.submission, plants.c.letter).where(plants.c.step == step)).all()
    )
    if not any(row.submission in letters for row in files):
        return []
    judges: defaultdict[int, list[str]] = defaultdict(list)
    for number, judge in db.execute(select(votes.c.submission, votes.c.judge).where(votes.c.step == step)):
        judges[number].append(judge)
    return [
        ("." if _is_nobodys_fault(row) else letters.get(row.submission, "."), [*judges[row.submission], row.judge])
        for row in files
    ]


def _is_nobodys_fault(row: Row[tuple[Any, ...]]) -> bool:
    finding = Verdict.from_json(row.verdict).finding
    return finding is not None and finding.check in NOBODYS_FAULT


def noted(database: Database) -> Iterator[tuple[int, str, str]]:
    """Pending entries in order: number, kind and body. A reader that goes on has struck out those before."""

    def read(db: Connection) -> list[tuple[int, str, str]]:
        return [tuple(row) for row in db.execute(select(outbox).order_by(outbox.c.number).limit(MAX_TOLD))]

    while due := database.ask(read):
        yield from due


def told(database: Database, last: int) -> None:
    """Strikes out what was told, up to a number."""

    def strike(db: Connection) -> None:
        db.execute(outbox.delete().where(outbox.c.number <= last))

    database.ask(strike)
