"""Draws that were let go: a lease that expires loses its deadline and not its draw, which is given again.

A node that holds a lease can compute what it earns before it hands it in: if it got another draw instead, it would hand
in only those that suit it. So a draw that was let go, with its beacon and its groups, comes before any other for its
node and for every node of its network: keys are free, and a fresh one changes nothing. A day later it goes to anybody,
so that what the run trains on lacks nothing.

The invariant: a draw is done when its file is accepted. Until then it is owed by every node that let it go, or that had
a file rejected which it could have spoiled on purpose; and a network in which more is undone than its work pays for
gets no new draw.

Functions of a transaction and a time; each decides before it writes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, exists, or_, select, update

from shoal.coordinator.db import queries
from shoal.coordinator.db.schema import WITH_FILE, LeaseStatus, leases, nodes, span_leases, submissions
from shoal.coordinator.lease_rules import (
    FILES_PER_DRAW,
    MAX_GIVEN,
    given_up_allowed,
    is_given_again,
    pays_for_itself,
    undone_allowed,
)
from shoal.coordinator.node_states import RECENT, Event, State, after, lets_expire
from shoal.coordinator.policy import Terms
from shoal.protocol.verdict import NUMBERS, ROUNDING, UNFETCHED, Finding, Verdict

LeaseRow = Row[tuple[Any, ...]]
# Checks that a file fails by nobody's doing. Its maker can have it fail any other one, without blame where it fails by
# little or cannot be read.
NOT_SPOILED = ("version", "scorer", UNFETCHED, "trainer")


@dataclass(frozen=True, slots=True)
class Draw:
    """What fixes a lease's tasks and noise, besides its version."""

    beacon: int
    groups: int
    draw_of: str = ""
    given: int = 1


def expire(db: Connection, now: float) -> bool:
    """Ends the leases whose time is over, and suspends nodes that let too many go; whether there were any."""
    if db.execute(queries.OVERDUE, {"now": now}).first() is None:
        return False
    over = (leases.c.status == LeaseStatus.OPEN) & (leases.c.until < now)
    let_go = Counter(db.execute(select(leases.c.node).where(over)).scalars())
    db.execute(update(leases).where(over, leases.c.given >= MAX_GIVEN).values(status=LeaseStatus.LOST))
    db.execute(update(leases).where(over).values(status=LeaseStatus.EXPIRED))
    for address, count in let_go.items():
        _note_expired(db, address, count, now)
    return True


def _note_expired(db: Connection, address: str, count: int, now: float) -> None:
    node = db.execute(queries.NODE, {"who": address}).first()
    if node is None:
        return
    total = node.expired + count
    ended = list(db.execute(queries.ENDED, {"who": address, "most": RECENT}).scalars())
    expired = sum(status not in WITH_FILE for status in ended)
    state = State(node.state)
    if lets_expire(total, expired, len(ended)):
        state = after(state, Event.SUSPEND)
    reason = f"let {total} leases in a row expire, {expired} of the last {len(ended)}"
    changed = {"state": state, "since": now, "reason": reason} if state != node.state else {}
    counts = {"expired": total, "abandoned": node.abandoned + count, "owed": node.owed + count}
    db.execute(nodes.update().where(nodes.c.address == address).values(**counts, **changed))


def hand_back(db: Connection, address: str, now: float) -> list[tuple[int, int]]:
    """Ends a node's open leases because it cannot finish them, as when its owner needs the machine; says which.

    Their groups are free for others at once. Each draw waits for its node as one that expired would, and is owed until
    it is done, so there is nothing to choose by. It is not held against the node otherwise: nobody waited for it.
    """
    held = [(row.step, row.submission) for row in db.execute(queries.OWN_LEASES, {"who": address}).all()]
    for step, submission in held:
        db.execute(queries.HAND_BACK, {"at_step": step, "at_submission": submission, "now": now})
        db.execute(queries.OWES, {"who": address})
    return held


def missed(idle: Sequence[LeaseRow], newest: int) -> list[LeaseRow]:
    """Those of a node's leases that it does not work on and nobody waits for, because their step is over: their draws
    are given again at once, and not for ever."""
    return [row for row in idle if is_given_again(row.step, newest, row.given)]


def waiting_for(db: Connection, terms: Terms, node: str, network: str, newest: int, now: float) -> LeaseRow | None:
    """The draw that comes before any other for a node: its own that it let go or had rejected, then one of its network,
    then one that has waited for its own long enough."""
    asked = {"who": node, "network": network, "newest": newest, "before": now - terms.kept_s}
    return next((row for query in queries.LET_GO if (row := db.execute(query, asked).first())), None)


def give_again(db: Connection, row: LeaseRow, node: str, network: str, room: int) -> Draw:
    """Ends the lease that had a draw, and gives what the next one takes over from it: all of it, or as many of its
    groups as the step has room for."""
    if row.status == LeaseStatus.OPEN:
        status = LeaseStatus.VOID  # its step was over
    elif row.status == LeaseStatus.REFUSED:
        status = LeaseStatus.REDONE
    elif row.node == node or row.network == network:
        status = LeaseStatus.RETAKEN if row.status == LeaseStatus.RETURNED else LeaseStatus.AGAIN
    else:
        status = LeaseStatus.LOST
    db.execute(queries.ENDS, {"at_step": row.step, "at_submission": row.submission, "as": status})
    # One that was handed back did not make its worker crash, and needs no more time than before.
    given = row.given + (row.status != LeaseStatus.RETURNED)
    return Draw(row.beacon, min(row.groups, room), row.draw_of or f"{row.step}/{row.submission}", given)


def carry_spans(db: Connection, row: LeaseRow, step: int, submission: int) -> None:
    """Gives a draw again with the spans that it had: otherwise a node would see how its answers go on, let the lease go
    and have other noise instead."""
    of_row = (span_leases.c.step == row.step) & (span_leases.c.submission == row.submission)
    for span in db.execute(select(span_leases).where(of_row)).all():
        kept = {"first": span.first, "version": span.version, "weights": span.weights, "beacon": span.beacon}
        db.execute(span_leases.insert().values(step=step, submission=submission, **kept))


def why_no_other(
    db: Connection, terms: Terms, node: Row[Any], own: Sequence[LeaseRow], network: str, now: float
) -> str:
    """Why a node gets no new draw for now; empty if it does.

    First it does what was given again to it. And a network in which lately more is undone than its work pays for gets
    no new draw: it does what it let go, or waits. A node whose own work pays for what it owes does not answer for its
    neighbours. Where the run has a list of nodes, or on this machine, keys are not free.
    """
    if again := next((row for row in own if row.draw_of), None):
        return f"lease {again.step}/{again.submission} gives draw {again.draw_of} again, and comes before a new one"
    if not network or terms.allow is not None or pays_for_itself(node.accepted, node.owed):
        return ""
    where = {"network": network, "since": now - terms.kept_s}
    undone = db.execute(queries.UNDONE, where).scalar_one()
    if undone == 0:
        return ""
    given_up = db.execute(queries.GIVEN_UP, where).scalar_one()
    handed_in = db.execute(queries.HANDED_IN, where).scalar_one()
    lately = f"of the last {terms.kept_s / 3600:.1f} hours"
    if undone > (most := undone_allowed(handed_in, terms)):
        return (
            f"nodes of network {network} have {undone} draws {lately} undone, and {most} may be after {handed_in} "
            "files: there is no new one until these are done or older"
        )
    if given_up > (most := given_up_allowed(handed_in)):
        return (
            f"nodes of network {network} did not do {given_up} draws {lately} that were given to them again, and "
            f"{most} may be after {handed_in} files: there is no new one until these are older"
        )
    return ""


def accepted(db: Connection, row: LeaseRow) -> None:
    """A draw is done: the nodes of its network that let it go before owe it no longer."""
    if row.draw_of:
        _forgive(db, row)


def refused(db: Connection, row: LeaseRow, finding: Finding | None) -> None:
    """A file was rejected: its draw is owed if its maker could have spoiled it, so that nobody hands in what is sure to
    be rejected instead of what does not suit it."""
    if finding is not None and finding.check in NOT_SPOILED:
        return
    db.execute(queries.ENDS, {"at_step": row.step, "at_submission": row.submission, "as": LeaseStatus.REFUSED})
    db.execute(queries.OWES, {"who": row.node})


def acquit(db: Connection) -> None:
    """Forgives what numbers had rejected by honest rates that are loosened now: the draws were done."""
    of_file = (submissions.c.step == leases.c.step) & (submissions.c.submission == leases.c.submission)
    was_refused = leases.c.status.in_((LeaseStatus.REFUSED, LeaseStatus.REDONE))
    query = select(leases, submissions.c.verdict).join(submissions, of_file).where(was_refused)
    for row in db.execute(query).all():
        finding = Verdict.from_json(row.verdict).finding if row.verdict else None
        if finding is None or finding.check not in (NUMBERS, ROUNDING):
            continue
        db.execute(queries.ACQUITTED, {"who": row.node})
        if not _was_made_good(db, row):
            db.execute(queries.MADE_GOOD, {"who": row.node})
        place = {"at_step": row.step, "at_submission": row.submission}
        db.execute(queries.ENDS, {**place, "as": LeaseStatus.USED})


def _was_made_good(db: Connection, row: LeaseRow) -> bool:
    """Whether the draw of a file that was rejected was done after it was given again, so that it is owed no longer."""
    if row.status == LeaseStatus.REFUSED:
        return False
    of_file = (submissions.c.step == leases.c.step) & (submissions.c.submission == leases.c.submission)
    of_draw = leases.c.draw_of == (row.draw_of or f"{row.step}/{row.submission}")
    near = or_(leases.c.node == row.node, leases.c.network == row.network)
    query = select(leases.c.step).join(submissions, of_file).where(of_draw, near, submissions.c.accept)
    return db.execute(query.limit(1)).first() is not None


def void(db: Connection, after_version: int) -> None:
    """Ends the leases of versions that are taken back, and those whose answers were to go on with one; nobody let
    anything go."""
    live = leases.c.status.in_((LeaseStatus.OPEN, LeaseStatus.EXPIRED, LeaseStatus.RETURNED))
    own = (span_leases.c.step == leases.c.step) & (span_leases.c.submission == leases.c.submission)
    goes_on = exists().where(own & (span_leases.c.version > after_version))
    gone = live & ((leases.c.version > after_version) | goes_on)
    for row in db.execute(select(leases).where(gone)).all():
        _forgive(db, row)
        if row.status != LeaseStatus.OPEN:
            db.execute(queries.MADE_GOOD, {"who": row.node})
    db.execute(update(leases).where(gone).values(status=LeaseStatus.VOID))


def _forgive(db: Connection, row: LeaseRow) -> None:
    first = row.draw_of or f"{row.step}/{row.submission}"
    step, submission = map(int, first.split("/"))
    place = {"first": first, "at_step": step, "at_submission": submission, "who": row.node, "network": row.network}
    for debtor in db.execute(queries.DEBTORS, place).scalars().all():
        db.execute(queries.MADE_GOOD, {"who": debtor})


def standing(accepted: int, rejected: int, owed: int) -> str:
    """What a node that owes draws has lost by it, and how it gets it back; empty if it owes none."""
    if not owed:
        return ""
    said = f"owes {owed} draw{'s' * (owed > 1)} that it let go or had rejected"
    missing = rejected + FILES_PER_DRAW * owed + 1 - accepted
    if missing <= 0:
        return said
    return f"{said}: counts as a newcomer until {missing} more files are accepted, or what was let go is done"


def became_of(db: Connection, row: LeaseRow) -> str:
    """What happened to a lease for which there is no file, and what follows."""
    name = f"lease {row.step}/{row.submission} of {row.node}"
    if row.status == LeaseStatus.OPEN:
        return f"{name}: is open, and nothing was handed in yet"
    if row.status == LeaseStatus.EXPIRED:
        return (
            f"{name}: expired and nothing was handed in; its draw is given again, to this node and its network first "
            "and a day or more later to anybody. Until then the node owes it"
        )
    if row.status == LeaseStatus.RETURNED:
        return f"{name}: was handed back; its draw is given again, to this node and its network first"
    if row.status == LeaseStatus.RETAKEN:
        return f"{name}: was handed back; its draw was given again, and is owed until its network has done it"
    place = {"first": row.draw_of or f"{row.step}/{row.submission}", "times": row.given + 1}
    following = db.execute(queries.GIVEN_NEXT, place).first()
    again = f"was given again as {following.step}/{following.submission}" if following else "was given up"
    if row.status == LeaseStatus.VOID and following:
        return f"{name}: step {row.step} was over; its draw {again}, and nobody is blamed"
    if row.status == LeaseStatus.VOID:
        return f"{name}: ended with version {row.version}, which the trainer took back; nobody is blamed"
    if row.status == LeaseStatus.AGAIN:
        return f"{name}: was let go; its draw {again}, and {row.node} owes it until its network has done it"
    return f"{name}: was let go; its draw {again}, and {row.node} owes it"
