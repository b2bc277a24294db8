"""What the ledger is yet to be told, noted in the transaction of what it is told of: neither is without the other."""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select

from shoal.ledger.acts import MOST_LEAVES
from shoal.swarm import queries
from shoal.swarm.database import Database, read_fact, write_fact
from shoal.swarm.tables import outbox, submissions

MOST_TOLD = 500
BATCHES, ENTERED = "batches", "entered steps"


def remember(db: Connection, kind: str, **arguments: Any) -> None:
    db.execute(queries.TO_TELL, {"kind": kind, "body": json.dumps(arguments)})


def remember_steps(db: Connection, before: int) -> None:
    """Notes the files of all steps before this one that have a verdict and are not noted yet, step by step.

    A step without files is noted too: the ledger's clock counts steps.
    """
    columns = (submissions.c.step, submissions.c.submission, submissions.c.node, submissions.c.sha256)
    judged = (submissions.c.step < before) & submissions.c.judged.is_not(None) & ~submissions.c.entered
    rows = db.execute(select(*columns, submissions.c.tokens).where(judged).order_by(*columns[:2])).all()
    if rows:
        db.execute(submissions.update().where(judged).values(entered=True))
    first = int(read_fact(db, ENTERED) or 0)
    steps = sorted({*range(first, before), *(row.step for row in rows)})
    for step in steps:
        leaves = [
            {"submission": row.submission, "node": row.node, "sha256": row.sha256, "tokens": row.tokens}
            for row in rows
            if row.step == step
        ]
        for start in range(0, max(1, len(leaves)), MOST_LEAVES):
            _remember_batch(db, step, leaves[start : start + MOST_LEAVES])
    write_fact(db, ENTERED, str(max(first, before)))


def _remember_batch(db: Connection, step: int, leaves: list[dict[str, Any]]) -> None:
    batch = int(read_fact(db, BATCHES) or 0)
    remember(db, "work", batch=batch, step=step, leaves=leaves)
    write_fact(db, BATCHES, str(batch + 1))


def noted(database: Database) -> Iterator[list[tuple[int, str, str]]]:
    """What is noted, some at a time and in order: number, kind and body. Each time until it is struck out."""

    def read(db: Connection) -> list[tuple[int, str, str]]:
        return [tuple(row) for row in db.execute(select(outbox).order_by(outbox.c.number).limit(MOST_TOLD))]

    while due := database.ask(read):
        yield due


def told(database: Database, last: int) -> None:
    """Strikes out what was told, up to a number."""

    def strike(db: Connection) -> None:
        db.execute(outbox.delete().where(outbox.c.number <= last))

    database.ask(strike)
