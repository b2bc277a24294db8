"""Draws that were let go: a lease that expires loses its deadline and not its draw, which is given again.

A node that lets a lease go has seen its tasks, and may have computed what they earn: if it got another draw instead, it
would hand in only those that suit it. So a draw that was let go, with its beacon and its groups, comes before any other
for its node and for every node of its network: keys are free, and a fresh one changes nothing. After a while it goes to
anybody, so that what the run trains on lacks nothing. One that its network did not make good is `owed`: it costs
standing, which accepted files restore.

Functions of a transaction and a time; each decides before it writes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, tuple_, update

from shoal.coordinator.db import queries
from shoal.coordinator.db.queries import FILES_PER_DRAW
from shoal.coordinator.db.schema import LeaseStatus, leases, nodes
from shoal.coordinator.node_states import RECENT, Event, State, after, lets_expire
from shoal.coordinator.policy import Terms

LeaseRow = Row[tuple[Any, ...]]
# For so many times `workers.lease_s` a draw that was let go is kept for its node and network: at the default of 240 s
# a machine has two hours to come back and do it.
KEPT_LEASES = 30
# A network that owes more than its work pays for waits `workers.lease_s` per draw between new ones, at most so often.
MAX_PAUSE_LEASES = 15
# A draw that makes workers crash is given so often, and then given up.
MAX_GIVEN = 6


@dataclass(frozen=True, slots=True)
class Draw:
    """What fixes a lease's tasks and noise, besides its version."""

    beacon: int
    groups: int
    draw_of: str = ""
    given: int = 1


def expire(db: Connection, now: float) -> bool:
    """Ends the leases whose time is over; whether there were any."""
    if db.execute(queries.OVERDUE, {"now": now}).first() is None:
        return False
    _let_go(db, leases.c.until < now, now)
    return True


def miss(db: Connection, node: str, newest: int, holding: Collection[tuple[int, int]], now: float) -> bool:
    """Ends the leases of a node for steps that are over, but for those that it says it works on: nobody waits for them
    any more, and it asks for other work. Whether there were any."""
    own = [(row.step, row.submission) for row in db.execute(queries.OWN_LEASES, {"who": node})]
    missed = [place for place in own if place[0] < newest and place not in holding]
    if missed:
        _let_go(db, tuple_(leases.c.step, leases.c.submission).in_(missed), now)
    return bool(missed)


def _let_go(db: Connection, which: ColumnElement[bool], now: float) -> None:
    """Notes it with the nodes of these leases, and suspends those that let too many go."""
    over = (leases.c.status == LeaseStatus.OPEN) & which
    rows = db.execute(select(leases.c.node).where(over)).all()
    db.execute(update(leases).where(over, leases.c.given >= MAX_GIVEN).values(status=LeaseStatus.LOST))
    db.execute(update(leases).where(over).values(status=LeaseStatus.EXPIRED))
    for address in {row.node for row in rows}:
        _note_expired(db, address, sum(row.node == address for row in rows), now)


def _note_expired(db: Connection, address: str, count: int, now: float) -> None:
    node = db.execute(queries.NODE, {"who": address}).first()
    if node is None:
        return
    total = node.expired + count
    ended = list(db.execute(queries.ENDED, {"who": address, "most": RECENT}).scalars())
    expired = len(ended) - ended.count(LeaseStatus.USED)
    state = State(node.state)
    if lets_expire(total, expired, len(ended)):
        state = after(state, Event.SUSPEND)
    reason = f"let {total} leases in a row expire, {expired} of the last {len(ended)}"
    changed = {"state": state, "since": now, "reason": reason} if state != node.state else {}
    counts = {"expired": total, "abandoned": node.abandoned + count, "owed": node.owed + count}
    db.execute(nodes.update().where(nodes.c.address == address).values(**counts, **changed))


def waiting_for(db: Connection, terms: Terms, node: str, network: str, room: int, now: float) -> LeaseRow | None:
    """The draw that comes before any other for a node: its own that it let go, then one of its network, then one that
    has waited for its own long enough and has at most `room` groups."""
    before = now - KEPT_LEASES * terms.lease_s
    asked = {"who": node, "network": network, "before": before, "room": room}
    return db.execute(queries.LET_GO, asked).first()


def give_again(db: Connection, row: LeaseRow, node: str, network: str) -> Draw:
    """Ends the lease that had a draw, and gives what the next one takes over from it.

    Within its network it is made good; elsewhere it stays owed by the node that let it go.
    """
    is_kept = row.node == node or row.network == network
    status = LeaseStatus.AGAIN if is_kept else LeaseStatus.LOST
    db.execute(queries.ENDS, {"at_step": row.step, "at_submission": row.submission, "as": status})
    if is_kept:
        db.execute(queries.MADE_GOOD, {"who": row.node})
    return Draw(row.beacon, row.groups, row.draw_of or f"{row.step}/{row.submission}", row.given + 1)


def why_no_other(
    db: Connection, terms: Terms, node: Row[Any], own: Sequence[LeaseRow], network: str, now: float
) -> str:
    """Why a node gets no new draw for now; empty if it does.

    First it does what was given again to it. And a network in which more was let go than its work pays for gets one new
    draw at a time, and waits the longer between them the more that is: choosing costs more work than it brings in. A
    node whose own work pays for what it let go does not answer for its neighbours. Where the run has a list of nodes,
    or on this machine, keys are not free.
    """
    if again := next((row for row in own if row.draw_of), None):
        return f"lease {again.step}/{again.submission} gives draw {again.draw_of} again, and comes before a new one"
    if not network or terms.allow is not None or node.accepted >= FILES_PER_DRAW * (node.owed + 1):
        return ""
    where = {"network": network}
    let_go = db.execute(queries.UNDONE, where).scalar_one()
    if let_go <= terms.probation_files:
        return ""
    accepted = db.execute(queries.ACCEPTED_NEAR, where).scalar_one()
    most = terms.probation_files + accepted // FILES_PER_DRAW
    pause_s = min(let_go - most, MAX_PAUSE_LEASES) * terms.lease_s
    last = db.execute(queries.LAST_NEAR, where).scalar()
    if let_go <= most or last is None or now >= last + pause_s:
        return ""
    return (
        f"nodes of network {network} let {let_go} draws go that are not done, and {most} may be after {accepted} "
        f"accepted files: the next new draw comes in {last + pause_s - now:.0f} s"
    )


def void(db: Connection, after_version: int) -> None:
    """Ends the leases of versions that are taken back; nobody let anything go."""
    live = leases.c.status.in_((LeaseStatus.OPEN, LeaseStatus.EXPIRED))
    gone = live & (leases.c.version > after_version)
    for row in db.execute(select(leases.c.node).where(gone, leases.c.status == LeaseStatus.EXPIRED)).all():
        db.execute(queries.MADE_GOOD, {"who": row.node})
    db.execute(update(leases).where(gone).values(status=LeaseStatus.VOID))


def standing(accepted: int, rejected: int, owed: int) -> str:
    """What a node that owes draws has lost by it, and how it gets it back; empty if it owes none."""
    if not owed:
        return ""
    said = f"owes {owed} draw{'s' * (owed > 1)} that it let go"
    missing = rejected + FILES_PER_DRAW * owed + 1 - accepted
    if missing <= 0:
        return said
    return f"{said}: counts as a newcomer until it does them or {missing} more files are accepted"


def became_of(db: Connection, row: LeaseRow) -> str:
    """What happened to a lease for which there is no file, and what follows."""
    name = f"lease {row.step}/{row.submission} of {row.node}"
    if row.status == LeaseStatus.OPEN:
        return f"{name}: is open, and nothing was handed in yet"
    if row.status == LeaseStatus.VOID:
        return f"{name}: ended with version {row.version}, which the trainer took back; nobody is blamed"
    if row.status == LeaseStatus.EXPIRED:
        return (
            f"{name}: expired and nothing was handed in; its draw is given again, to this node and its network first "
            f"and after {KEPT_LEASES} times workers.lease_s to anybody. Until then the node owes it"
        )
    place = {"first": row.draw_of or f"{row.step}/{row.submission}", "times": row.given + 1}
    following = db.execute(queries.GIVEN_NEXT, place).first()
    again = f"was given again as {following.step}/{following.submission}" if following else "was given up"
    if row.status == LeaseStatus.AGAIN:
        return f"{name}: was let go; its draw {again}, to a node of the same network, and nobody owes it"
    return f"{name}: was let go; its draw {again}, and {row.node} owes it"
