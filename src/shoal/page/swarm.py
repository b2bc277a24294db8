"""Page "swarm": nodes by state, what they bring, and how weights reach them; no address of any machine."""

import time
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Row, case, func, or_, select

from shoal.coordinator.db.schema import nodes, submissions
from shoal.coordinator.draws import standing
from shoal.page.privacy import public_text
from shoal.page.source import RECENT_S, RunFiles
from shoal.page.weights_tree import AT_WORK, weights_tree

PER_PAGE = 100
MAX_PAGE = 10_000
SPEED = case((nodes.c.busy_s > 0, nodes.c.tokens / nodes.c.busy_s), else_=0.0)
ORDERS: dict[str, tuple[ColumnElement[object], ...]] = {
    "tokens": (nodes.c.tokens.desc(),),
    "speed": (SPEED.desc(),),
    "accepted": (nodes.c.accepted.desc(),),
    "refused": (nodes.c.rejected.desc(),),
    "seen": (nodes.c.seen.desc(),),
    "name": (func.lower(nodes.c.name), nodes.c.address),
}


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Which nodes are listed, and in which order."""

    state: str = ""
    role: str = ""
    search: str = ""
    sort: str = "tokens"
    page: int = 0


def swarm_document(db: Connection, files: RunFiles, query: NodeQuery) -> dict[str, object]:
    """Counts of all nodes, the tree of weights, and one page of the list."""
    states: dict[str, int] = dict(db.execute(select(nodes.c.state, func.count()).group_by(nodes.c.state)).all())
    roles: dict[str, int] = dict(db.execute(select(nodes.c.role, func.count()).group_by(nodes.c.role)).all())
    verdicts: dict[bool | None, int] = dict(
        db.execute(select(submissions.c.accept, func.count()).group_by(submissions.c.accept)).all()
    )
    working = (nodes.c.role == "worker") & nodes.c.state.in_(AT_WORK) & (nodes.c.seen >= time.time() - RECENT_S)
    speed, tokens = db.execute(select(func.sum(case((working, SPEED), else_=0.0)), func.sum(nodes.c.tokens))).one()
    wanted = _wanted(query)
    found = db.execute(select(func.count()).select_from(nodes).where(*wanted)).scalar_one()
    page = min(query.page, max(0, -(-found // PER_PAGE) - 1))
    order = ORDERS.get(query.sort, ORDERS["tokens"])
    rows = db.execute(
        select(nodes, SPEED.label("speed"))
        .where(*wanted)
        .order_by(*order, nodes.c.address)
        .limit(PER_PAGE)
        .offset(page * PER_PAGE)
    )
    return {
        "states": states,
        "roles": roles,
        "accepted": verdicts.get(True, 0),
        "refused": verdicts.get(False, 0),
        "unjudged": verdicts.get(None, 0),
        "tokens": int(tokens or 0),
        "tokens_per_s": float(speed or 0.0),
        "tree": weights_tree(db, files),
        "found": found,
        "page": page,
        "per_page": PER_PAGE,
        "nodes": [node_row(row) for row in rows],
    }


def node_row(row: Row[tuple[object, ...]]) -> dict[str, object]:
    """A node as anybody may see it: without its URL and its network."""
    return {
        "address": row.address,
        "name": public_text(row.name),
        "role": row.role,
        "state": row.state,
        "seen": round(row.seen, 1),
        "joined": row.joined,
        "version": row.version,
        "doing": public_text(row.doing),
        "waits_on": public_text(row.waits_on),
        "profile": public_text(row.profile),
        "accepted": row.accepted,
        "rejected": row.rejected,
        "abandoned": row.abandoned,
        "samples": row.samples,
        "tokens": row.tokens,
        "tokens_per_s": round(row.tokens / row.busy_s, 1) if row.busy_s > 0 else None,
        "reason": public_text(row.reason or standing(row.accepted, row.rejected, row.owed)),
    }


def _wanted(query: NodeQuery) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if query.state:
        wanted.append(nodes.c.state == query.state)
    if query.role:
        wanted.append(nodes.c.role == query.role)
    if query.search:
        text = query.search.lower()
        wanted.append(
            or_(
                func.lower(nodes.c.name).contains(text, autoescape=True),
                nodes.c.address.startswith(text, autoescape=True),
            )
        )
    return wanted
