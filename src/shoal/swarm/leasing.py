"""Leases and uploads: who gets work, for which step, and whose file counts as the work done.

Functions of a transaction and a time; each decides before it writes.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Row, func, select

from shoal.keys import Key
from shoal.rollout.lease import Lease
from shoal.rollout.pacing import StepCount, next_grant
from shoal.swarm.leases import SignedLease
from shoal.swarm.ledger import remember
from shoal.swarm.refusal import Refusal
from shoal.swarm.registry import Node
from shoal.swarm.states import Event, State, after, holds_leases, may_lease
from shoal.swarm.tables import beacons, leases, nodes, submissions, versions
from shoal.swarm.terms import Terms

# Signal rates are judged by this many steps before the newest version's, as in the directory store.
MEMORY = 4
HOLDERS = [state.value for state in State if holds_leases(state)]


@dataclass(frozen=True, slots=True)
class NoLease:
    """There is no work for a node now, and why."""

    reason: str


def announce(db: Connection, number: int, root: str, now: float) -> None:
    """Makes a version known. The same again changes nothing; another content under a known number is refused."""
    known = db.execute(select(versions.c.root).where(versions.c.number == number)).scalar()
    if known is not None and known != root:
        raise Refusal(
            "taken", f"version {number}: is announced as {known[:12]}, not {root[:12]}; retract it before another one"
        )
    if known is None:
        db.execute(versions.insert().values(number=number, root=root, announced=now))


def retract(db: Connection, after_version: int) -> list[int]:
    """Takes back versions above a number; says which."""
    gone = versions.c.number > after_version
    numbers = list(db.execute(select(versions.c.number).where(gone).order_by(versions.c.number)).scalars())
    if numbers:
        db.execute(versions.delete().where(gone))
    return numbers


def newest_version(db: Connection) -> int | None:
    return db.execute(select(func.max(versions.c.number))).scalar()


def counts(db: Connection, first: int, last: int, now: float) -> dict[int, StepCount]:
    """What steps have: groups that arrived and were not rejected, and groups on leases that are out."""
    arrived = (
        select(submissions.c.step, func.sum(submissions.c.groups), func.sum(submissions.c.signal))
        .where(submissions.c.step.between(first, last), submissions.c.accept.is_not(False))
        .group_by(submissions.c.step)
    )
    out = (
        select(leases.c.step, func.sum(leases.c.groups))
        .join(nodes, nodes.c.address == leases.c.node)
        .where(
            leases.c.step.between(first, last),
            leases.c.status == "open",
            leases.c.until >= now,
            nodes.c.state.in_(HOLDERS),
        )
        .group_by(leases.c.step)
    )
    seen = {step: (int(groups), int(signal)) for step, groups, signal in db.execute(arrived)}
    leased = {step: int(groups) for step, groups in db.execute(out)}
    return {
        step: StepCount(*seen.get(step, (0, 0)), leased.get(step, 0)) for step in sorted(seen.keys() | leased.keys())
    }


def grant(
    db: Connection, terms: Terms, key: Key, node: Node, version: int, holding: Collection[tuple[int, int]], now: float
) -> SignedLease | NoLease:
    """The node's own open lease, if it does not name it, so that a restarted node goes on; a new one otherwise.

    `version` is the newest that the node has.
    """
    if node.role != "worker":
        raise Refusal("not-allowed", f"{node.address}: joined as {node.role}; only workers get leases")
    state = after(State(node.state), Event.SEEN)
    if not may_lease(state):
        raise Refusal("suspended", f"{node.address}: is {state} because it {node.reason}; it gets no leases for now")
    newest = newest_version(db)
    if newest is None or version > newest:
        return NoLease(f"version {version} is not announced by the trainer yet")
    last = min(version + terms.async_level, terms.steps - 1)
    first = max(version, newest)
    own = db.execute(
        select(leases)
        .where(
            leases.c.node == node.address,
            leases.c.status == "open",
            leases.c.until >= now,
            leases.c.step.between(first, last),
        )
        .order_by(leases.c.step, leases.c.submission)
    ).all()
    for row in own:
        if (row.step, row.submission) not in holding:
            return _signed(db, terms, key, row)
    most = terms.leases if node.accepted >= terms.probation else terms.probation_leases
    if len(own) >= most:
        return NoLease(f"{node.address} holds {len(own)} leases, and may hold {most} at once")
    found = counts(db, max(0, newest - MEMORY), last, now)
    granted = next_grant(
        found,
        version=version,
        async_level=terms.async_level,
        steps=terms.steps,
        needed=terms.groups_per_step,
        most_seen=terms.most_groups,
        submission_groups=terms.groups_per_submission,
        first_step=newest,
    )
    if granted is None:
        return NoLease(f"steps {first}..{last} are provided for; version {newest + 1} brings more work")
    number = db.execute(select(func.max(leases.c.submission)).where(leases.c.step == granted.step)).scalar()
    lease = Lease(
        run=terms.run,
        node=node.address,
        step=granted.step,
        submission=0 if number is None else number + 1,
        oldest=max(0, granted.step - terms.async_level),
        newest=granted.step,
        groups=granted.groups,
        beacon=_beacon(db, node, now),
        deadline=now + terms.lease_s,
    )
    db.execute(
        leases.insert().values(
            step=lease.step,
            submission=lease.submission,
            node=lease.node,
            groups=lease.groups,
            oldest=lease.oldest,
            newest=lease.newest,
            beacon=lease.beacon,
            issued=now,
            deadline=lease.deadline,
            until=lease.deadline,
            status="open",
        )
    )
    return SignedLease.sign(lease, _roots(db, lease), key)


def _beacon(db: Connection, node: Node, now: float) -> int:
    """A number that nobody knew when the node joined, so that no address can be chosen to suit it."""
    newest = db.execute(select(beacons).order_by(beacons.c.number.desc()).limit(1)).first()
    if newest is not None and newest.drawn > node.joined:
        return int(newest.value)
    value = secrets.randbits(63)
    db.execute(beacons.insert().values(number=newest.number + 1 if newest else 0, value=value, drawn=now))
    return value


def _roots(db: Connection, lease: Lease) -> dict[int, str]:
    allowed = versions.c.number.between(lease.oldest, lease.newest)
    return dict(db.execute(select(versions.c.number, versions.c.root).where(allowed)).all())


def lease_of(terms: Terms, row: Row[tuple[object, ...]]) -> Lease:
    """The lease in a row, as it was signed."""
    return Lease(
        run=terms.run,
        node=row.node,
        step=row.step,
        submission=row.submission,
        oldest=row.oldest,
        newest=row.newest,
        groups=row.groups,
        beacon=row.beacon,
        deadline=row.deadline,
    )


def _signed(db: Connection, terms: Terms, key: Key, row: Row[tuple[object, ...]]) -> SignedLease:
    lease = lease_of(terms, row)
    return SignedLease.sign(lease, _roots(db, lease), key)


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to send a lease's file; `done` if these bytes are here already."""

    groups: int
    done: bool


def may_upload(db: Connection, node: Node, step: int, submission: int, sha256: str, signal: int, now: float) -> Ticket:
    """Whether the node may hand in a file with this hash under this lease; a Refusal says why not."""
    row = db.execute(select(leases).where(leases.c.step == step, leases.c.submission == submission)).first()
    name = f"lease step {step} submission {submission}"
    if row is None:
        raise Refusal("unknown", f"{name}: was never issued; ask for a lease first")
    if row.node != node.address:
        raise Refusal("not-yours", f"{name}: was issued to {row.node}, not to {node.address}")
    if row.status == "used":
        here = db.execute(
            select(submissions.c.sha256).where(submissions.c.step == step, submissions.c.submission == submission)
        ).scalar_one()
        if here != sha256:
            raise Refusal("taken", f"{name}: was already submitted with other bytes; a lease is good for one file")
        return Ticket(row.groups, done=True)
    if now > row.until:
        raise Refusal("expired", f"{name}: expired {now - row.until:.0f} s ago; its work went elsewhere")
    if signal > row.groups:
        raise Refusal("malformed", f"{name}: is for {row.groups} groups, {signal} with signal cannot be")
    return Ticket(row.groups, done=False)


def take_upload(
    db: Connection,
    node: Node,
    step: int,
    submission: int,
    sha256: str,
    size: int,
    signal: int,
    began: float,
    now: float,
) -> bool:
    """Makes a file that lies in the store the lease's one; False if it was that already.

    What counts is when it began to come: an honest file is not lost to a slow line.
    """
    ticket = may_upload(db, node, step, submission, sha256, signal, began)
    if ticket.done:
        return False
    db.execute(
        submissions.insert().values(
            step=step,
            submission=submission,
            node=node.address,
            sha256=sha256,
            size=size,
            groups=ticket.groups,
            signal=signal,
            received=now,
            kept=True,
        )
    )
    db.execute(leases.update().where(leases.c.step == step, leases.c.submission == submission).values(status="used"))
    if node.expired:
        db.execute(nodes.update().where(nodes.c.address == node.address).values(expired=0))
    remember(db, "submitted", node=node.address, step=step, submission=submission, sha256=sha256, groups=ticket.groups)
    return True
