"""What the ledger is told of: who joined, what was handed in and what came of it.

The coordinator writes what is to be told with the change itself and tells it afterwards, again and again until it is
done: an entry has a name, and telling it twice is telling it once. So a ledger may be slow, far away or down.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, func, select

from shoal.swarm import queries
from shoal.swarm.database import Database
from shoal.swarm.tables import ledger as entries
from shoal.swarm.tables import outbox

MOST_TOLD = 500


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node has to its name."""

    registered: bool
    submitted: int
    accepted: int
    rejected: int


class Ledger(Protocol):
    """An append-only record. Every method may be called again with the same arguments and then does nothing."""

    def register(self, node: str, role: str, time: float) -> None: ...

    def submitted(self, node: str, step: int, submission: int, sha256: str, groups: int) -> None: ...

    def verdict(self, node: str, step: int, submission: int, accept: bool, reason: str, judge: str) -> None: ...

    def standing(self, node: str) -> Standing: ...


class DatabaseLedger:
    """The ledger in the coordinator's own database: a record of facts that its operator could change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, node: str, role: str, time: float) -> None:
        self._enter(f"register {node}", "register", node, {"role": role, "time": time})

    def submitted(self, node: str, step: int, submission: int, sha256: str, groups: int) -> None:
        body = {"step": step, "submission": submission, "sha256": sha256, "groups": groups}
        self._enter(f"submitted {step}/{submission}", "submitted", node, body)

    def verdict(self, node: str, step: int, submission: int, accept: bool, reason: str, judge: str) -> None:
        body = {"step": step, "submission": submission, "reason": reason, "judge": judge}
        kind = "accepted" if accept else "rejected"
        self._enter(f"{kind} {step}/{submission}", kind, node, body)

    def standing(self, node: str) -> Standing:
        def read(db: Connection) -> Standing:
            query = select(entries.c.kind, func.count()).where(entries.c.node == node).group_by(entries.c.kind)
            found: dict[str, int] = dict(db.execute(query).all())
            return Standing(
                registered=bool(found.get("register")),
                submitted=found.get("submitted", 0),
                accepted=found.get("accepted", 0),
                rejected=found.get("rejected", 0),
            )

        return self._database.ask(read)

    def _enter(self, entry: str, kind: str, node: str, body: dict[str, Any]) -> None:
        def write(db: Connection) -> None:
            if db.execute(queries.ENTRY, {"named": entry}).first() is None:
                row = {"entry": entry, "kind": kind, "node": node, "body": json.dumps(body)}
                db.execute(queries.ADD_ENTRY, row)

        self._database.ask(write)


def remember(db: Connection, kind: str, **arguments: Any) -> None:
    """Notes that the ledger is to be told, in the transaction of what it is told of."""
    db.execute(queries.TO_TELL, {"kind": kind, "body": json.dumps(arguments)})


def tell(database: Database, ledger: Ledger) -> int:
    """Tells the ledger what it has not been told; how much that was. Not from the database's own thread."""

    def read(db: Connection) -> list[tuple[int, str, str]]:
        return [tuple(row) for row in db.execute(select(outbox).order_by(outbox.c.number).limit(MOST_TOLD))]

    telling: dict[str, Callable[..., None]] = {
        "register": ledger.register,
        "submitted": ledger.submitted,
        "verdict": ledger.verdict,
    }
    due = database.ask(read)
    for _, kind, body in due:
        telling[kind](**json.loads(body))
    if due:
        last = due[-1][0]
        database.ask(lambda db: db.execute(outbox.delete().where(outbox.c.number <= last)).rowcount)
    return len(due)
