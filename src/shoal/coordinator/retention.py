"""Retention of rejected files: their bytes are kept while the verdict can be challenged, within a disk budget.

An arbiter judges the bytes, so they must be there for as long as it may be asked to rule. Keys cost nothing: when the
budget is spent, the files of nodes without an accepted one go first, so strangers push out each other and no node that
has worked.
"""

from sqlalchemy import Connection, func, select, true, tuple_

from shoal.coordinator.db.schema import nodes, submissions
from shoal.coordinator.uploads import object_name
from shoal.ledger.state import Batch, State

MAX_DROPPED = 500  # in one statement


def is_final(state: State, batch: Batch) -> bool:
    """Whether the verdicts of a batch can no longer be challenged."""
    return not batch.leaves or (bool(batch.outcomes) and state.window >= batch.settled + 2)


def first_open(state: State) -> int:
    """The first step with a verdict that can still be challenged, or that is yet to be entered."""
    steps = [batch.step for batch in state.batches if not is_final(state, batch)]
    return min(steps, default=state.clock + 1 if state.batches else 0)


def drop_rejected(db: Connection, quorum: int, open_from: int, budget: int) -> list[str]:
    """Marks rejected files as removed that are entered and of steps before `open_from`, and those that are more than
    `budget` bytes; gives their names. Where several validators decide, one may yet have to read what is not entered.
    """
    held = submissions.c.kept & submissions.c.accept.is_(False)
    rows = db.execute(
        select(
            submissions.c.step,
            submissions.c.submission,
            submissions.c.sha256,
            submissions.c.size,
            submissions.c.entered,
        )
        .join(nodes, nodes.c.address == submissions.c.node, isouter=True)
        .where(held, submissions.c.entered if quorum > 1 else true())
        # Newest first, and before them those of nodes that have shown that they work: what is kept.
        .order_by(
            (func.coalesce(nodes.c.accepted, 0) > 0).desc(),
            submissions.c.step.desc(),
            submissions.c.submission.desc(),
        )
    ).all()
    dropped, used = [], 0
    for row in rows:
        if (row.entered and row.step < open_from) or used + row.size > budget:
            dropped.append((row.step, row.submission, row.sha256))
        else:
            used += row.size
    place = tuple_(submissions.c.step, submissions.c.submission)
    for start in range(0, len(dropped), MAX_DROPPED):
        some = [(step, number) for step, number, _ in dropped[start : start + MAX_DROPPED]]
        db.execute(submissions.update().where(place.in_(some)).values(kept=False))
    return [object_name(*row) for row in dropped]
