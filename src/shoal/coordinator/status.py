"""Status page data: nodes, steps, and who waits on whom."""

from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from shoal.coordinator.db.schema import LeaseStatus, evidence, leases, nodes, submissions
from shoal.coordinator.draws import standing
from shoal.coordinator.latencies import Latencies, latest_latencies
from shoal.coordinator.leases import counts, newest_version
from shoal.coordinator.policy import Terms
from shoal.coordinator.verdicts import Against
from shoal.protocol.pacing import StepCount

MAX_NODES = 1000
MAX_REASON = 500  # characters; with the rest, a list of so many nodes stays within what clients read
# A stranger with a thousand keys hides neither the run's own roles nor those who brought or spoilt something.
_FIRST = (
    case((nodes.c.role.in_(("trainer", "validator")), 0), else_=1),
    (nodes.c.accepted + nodes.c.rejected).desc(),
    nodes.c.seen.desc(),
)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as others may see it."""

    address: str
    role: str
    name: str
    state: str
    seen_s: float
    """Seconds since it was heard."""
    reason: str
    doing: str
    waits_on: str
    version: int | None
    leases: int
    profile: str
    """How it says that it computes."""
    accepted: int
    rejected: int
    abandoned: int
    """Leases that it let expire, in all."""
    owed: int
    """Draws that it let go or had rejected, and that are not done."""
    samples: int
    """In accepted files."""
    tokens: int
    numbers: Against | None
    """Numeric evidence against it, in bfloat16 runs."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a run."""

    run: str
    steps: int
    version: int | None
    nodes: list[NodeView]
    states: dict[str, int]
    """Nodes in each state, also those that are not listed."""
    counts: dict[int, StepCount]
    """Groups of the steps that are being filled."""
    needed: int
    waiting: int
    """Files without a verdict."""
    accepted: int
    rejected: int
    latencies: Latencies | None
    """None before the first version."""


def overview(db: Connection, terms: Terms, now: float) -> Overview:
    newest = newest_version(db)
    out: dict[str, int] = dict(
        db.execute(
            select(leases.c.node, func.count())
            .where(leases.c.status == LeaseStatus.OPEN, leases.c.until >= now)
            .group_by(leases.c.node)
        ).all()
    )
    listed = [
        NodeView(
            address=row.address,
            role=row.role,
            name=row.name,
            state=row.state,
            seen_s=round(max(0.0, now - row.seen), 1),
            reason=(row.reason or standing(row.accepted, row.rejected, row.owed))[:MAX_REASON],
            doing=row.doing,
            waits_on=row.waits_on,
            version=row.version,
            leases=out.get(row.address, 0),
            profile=row.profile,
            accepted=row.accepted,
            rejected=row.rejected,
            abandoned=row.abandoned,
            owed=row.owed,
            samples=row.samples,
            tokens=row.tokens,
            numbers=None if row.nats is None else Against(row.nats, row.files, row.limit_nats),
        )
        for row in db.execute(
            select(nodes, evidence.c.nats, evidence.c.files, evidence.c.limit_nats)
            .outerjoin(evidence, evidence.c.node == nodes.c.address)
            .order_by(*_FIRST)
            .limit(MAX_NODES)
        )
    ]
    states: dict[str, int] = dict(db.execute(select(nodes.c.state, func.count()).group_by(nodes.c.state)).all())
    files: dict[bool | None, int] = dict(
        db.execute(select(submissions.c.accept, func.count()).group_by(submissions.c.accept)).all()
    )
    first = newest or 0
    last = min(first + terms.async_level, terms.steps - 1)
    found = counts(db, first, last, now)
    return Overview(
        run=terms.run,
        steps=terms.steps,
        version=newest,
        nodes=listed,
        states=states,
        counts={step: found.get(step, StepCount()) for step in range(first, last + 1)},
        needed=terms.groups_per_step,
        waiting=files.get(None, 0),
        accepted=files.get(True, 0),
        rejected=files.get(False, 0),
        latencies=latest_latencies(db, terms),
    )
