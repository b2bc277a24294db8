"""Precompiled SQL of the busiest requests: building a statement takes four times as long as running it."""

from sqlalchemy import ColumnElement, Exists, Table, and_, bindparam, case, exists, func, or_, select

from shoal.coordinator.db.schema import (
    LeaseStatus,
    leases,
    nodes,
    nonces,
    notes,
    outbox,
    plants,
    submissions,
    versions,
    votes,
)
from shoal.coordinator.lease_rules import FILES_PER_DRAW, MAX_REFUSED
from shoal.coordinator.node_states import State, holds_leases


def _planted_bad(files: Table) -> Exists:
    return exists().where(
        plants.c.letter == "r", plants.c.step == files.c.step, plants.c.submission == files.c.submission
    )


def _counts(record: ColumnElement[int], work: Table) -> ColumnElement[bool]:
    """Whether work under way counts for a node that asks: what its own kind does near it, and those of this record."""
    near = and_(work.c.network == bindparam("network"), record >= bindparam("near"))
    return or_(record >= bindparam("record"), near)


# What says nothing about whether a node lets leases expire.
_NOT_DONE_NOR_EXPIRED = (LeaseStatus.OPEN, LeaseStatus.VOID, LeaseStatus.RETURNED, LeaseStatus.RETAKEN)
_HOLDERS = [state.value for state in State if holds_leases(state)]
_own = nodes.c.address == bindparam("who")
_of_steps = leases.c.step.between(bindparam("first"), bindparam("last"))
_lease = (leases.c.step == bindparam("at_step")) & (leases.c.submission == bindparam("at_submission"))
_file = (submissions.c.step == bindparam("at_step")) & (submissions.c.submission == bindparam("at_submission"))

# What a node has shown so far, as `lease_rules.record`; a node that was forgotten has shown nothing good.
RECORD = case(
    (nodes.c.accepted > nodes.c.rejected + FILES_PER_DRAW * nodes.c.owed, 2),
    (nodes.c.address.is_(None), 0),
    (nodes.c.rejected + nodes.c.abandoned > 0, 0),
    else_=1,
)

NODE = select(nodes).where(_own)
# One that is banned stays here, and takes no place.
COUNT_NODES = select(func.count()).select_from(nodes).where(nodes.c.state != State.BANNED)
ADD_NODE = nodes.insert()
ADD_NONCE = nonces.insert()
HEARD = nodes.update().where(_own).values(seen=bindparam("now"))
CHANGED = nodes.update().where(_own).values(seen=bindparam("now"), state=bindparam("then"), since=bindparam("now"))
SAID = nodes.update().where(_own).values(doing=bindparam("said"), waits_on=bindparam("waits"), version=bindparam("has"))
WORKED = nodes.update().where(_own).values(expired=0)
ACCEPTED = (
    nodes.update()
    .where(_own)
    .values(
        accepted=nodes.c.accepted + 1,
        samples=nodes.c.samples + bindparam("more_samples"),
        tokens=nodes.c.tokens + bindparam("more_tokens"),
        busy_s=nodes.c.busy_s + bindparam("more_busy_s"),
    )
)
REJECTED = nodes.update().where(_own).values(rejected=nodes.c.rejected + 1, refused=bindparam("why"))

UNJUDGED = (
    select(func.count())
    .select_from(submissions)
    .where(
        submissions.c.accept.is_(None),
        submissions.c.node == bindparam("who"),
        submissions.c.step >= bindparam("first"),
    )
)
# When the last file of a node before this one arrived, among those that may have been made beside it.
ARRIVED_BEFORE = select(func.max(submissions.c.received)).where(
    submissions.c.node == bindparam("who"),
    submissions.c.step >= bindparam("first"),
    submissions.c.received < bindparam("received"),
    or_(submissions.c.accept.is_(None), submissions.c.accept),
)
NEWEST = select(func.max(versions.c.number))
ROOT = select(versions.c.root).where(versions.c.number == bindparam("number"))

OWN_LEASES = (
    select(leases)
    .where(leases.c.node == bindparam("who"), leases.c.status == LeaseStatus.OPEN)
    .order_by(leases.c.step, leases.c.submission)
)
OVERDUE = select(leases.c.node).where(leases.c.status == LeaseStatus.OPEN, leases.c.until < bindparam("now")).limit(1)
LAST_NUMBER = select(func.max(leases.c.submission)).where(leases.c.step == bindparam("at_step"))
ADD_LEASE = leases.insert()
LEASE = select(leases).where(_lease)
ENDS = leases.update().where(_lease).values(status=bindparam("as"))
HAND_BACK = leases.update().where(_lease).values(status=LeaseStatus.RETURNED, until=bindparam("now"))
ENDED = (
    select(leases.c.status)
    .where(leases.c.node == bindparam("who"), leases.c.status.not_in(_NOT_DONE_NOR_EXPIRED))
    .order_by(leases.c.issued.desc())
    .limit(bindparam("most"))
)
_mine, _near = leases.c.node == bindparam("who"), leases.c.network == bindparam("network")
# A rejected file's draw waits for a newer version, whose answers are others: by those that were rejected, an honest
# machine would be rejected again.
_to_redo = and_(
    leases.c.status == LeaseStatus.REFUSED, leases.c.given < MAX_REFUSED, leases.c.version < bindparam("newest")
)
_let_go = leases.c.status.in_((LeaseStatus.EXPIRED, LeaseStatus.RETURNED))
_waits = select(leases).where(or_(_let_go, _to_redo)).limit(1)
_oldest_first = leases.c.until, leases.c.step, leases.c.submission
# Draws that were let go, in the order in which a node gets them: its own, those of its network, those kept long enough.
LET_GO = (
    _waits.where(_mine).order_by(*_oldest_first),
    _waits.where(_near).order_by(*_oldest_first),
    _waits.where(leases.c.until < bindparam("before")).order_by(*_oldest_first),
)
_draw = or_(leases.c.draw_of == bindparam("first"), _lease)
GIVEN_NEXT = select(leases).where(leases.c.draw_of == bindparam("first"), leases.c.given == bindparam("times"))
# Who let a draw go before its network did it after all.
DEBTORS = select(leases.c.node).where(
    _draw, leases.c.status.in_((LeaseStatus.AGAIN, LeaseStatus.RETAKEN, LeaseStatus.REDONE)), or_(_mine, _near)
)
OWES = nodes.update().where(_own).values(owed=nodes.c.owed + 1)
ACQUITTED = nodes.update().where(_own, nodes.c.rejected > 0).values(rejected=nodes.c.rejected - 1)
MADE_GOOD = nodes.update().where(_own, nodes.c.owed > 0).values(owed=nodes.c.owed - 1)
# Of one network lately: draws that it took and did not do, and those that it handed in.
_near_lately = _near & (leases.c.until > bindparam("since"))
UNDONE = (
    select(func.count())
    .select_from(leases)
    .where(
        _near_lately,
        or_(
            leases.c.status.in_((LeaseStatus.EXPIRED, LeaseStatus.RETURNED, LeaseStatus.LOST, LeaseStatus.REFUSED)),
            (leases.c.status == LeaseStatus.OPEN) & (leases.c.draw_of != ""),
        ),
    )
)
# Those that are not given again any more.
GIVEN_UP = (
    select(func.count())
    .select_from(leases)
    .where(
        _near_lately,
        or_(
            leases.c.status == LeaseStatus.LOST,
            (leases.c.status == LeaseStatus.REFUSED) & (leases.c.given >= MAX_REFUSED),
        ),
    )
)
HANDED_IN = select(func.count()).select_from(leases).where(_near_lately, leases.c.status == LeaseStatus.USED)
# Leases of a node that let its last ones expire count for its like alone, whatever it did before.
_lease_record = case((nodes.c.expired > 0, 0), else_=RECORD)
LEASED = (
    select(leases.c.step, func.sum(leases.c.groups))
    .join(nodes, nodes.c.address == leases.c.node)
    .where(
        _of_steps,
        leases.c.status == LeaseStatus.OPEN,
        leases.c.until >= bindparam("now"),
        nodes.c.state.in_(_HOLDERS),
        _counts(_lease_record, leases),
    )
    .group_by(leases.c.step)
)
# Without what is known to be bad, which nobody trains on.
LEASED_GOOD = LEASED.where(~_planted_bad(leases))
ARRIVED = (
    select(submissions.c.step, func.sum(submissions.c.groups), func.sum(submissions.c.signal))
    .outerjoin(nodes, nodes.c.address == submissions.c.node)
    .where(
        submissions.c.step.between(bindparam("first"), bindparam("last")),
        or_(
            submissions.c.accept,
            submissions.c.accept.is_(None) & _counts(RECORD, submissions),
        ),
    )
    .group_by(submissions.c.step)
)
# What newcomers of one network have in their hands or before a judge, and how many there are no newcomers any more.
NEWCOMERS_LEASES = (
    select(func.count())
    .select_from(leases)
    .outerjoin(nodes, nodes.c.address == leases.c.node)
    .where(
        leases.c.network == bindparam("network"),
        leases.c.status == LeaseStatus.OPEN,
        leases.c.until >= bindparam("now"),
        leases.c.step >= bindparam("first"),
        RECORD < 2,
    )
)
NEWCOMERS_FILES = (
    select(func.count())
    .select_from(submissions)
    .outerjoin(nodes, nodes.c.address == submissions.c.node)
    .where(
        submissions.c.network == bindparam("network"),
        submissions.c.accept.is_(None),
        submissions.c.step >= bindparam("first"),
        RECORD < 2,
    )
)
# What they had refused lately, in the last few steps.
NEWCOMERS_REFUSED = (
    select(func.count())
    .select_from(submissions)
    .outerjoin(nodes, nodes.c.address == submissions.c.node)
    .where(
        submissions.c.network == bindparam("network"),
        submissions.c.accept.is_(False),
        submissions.c.judged >= bindparam("lately"),
        submissions.c.step >= bindparam("recent"),
        RECORD < 2,
    )
)
PROVEN_NEIGHBOURS = (
    select(func.count())
    .select_from(nodes)
    .where(nodes.c.network == bindparam("network"), nodes.c.state != State.BANNED, RECORD == 2)
)
MOVED = nodes.update().where(_own).values(network=bindparam("network"))
PLANTED_BAD = _planted_bad(submissions)
ARRIVED_GOOD = ARRIVED.where(~PLANTED_BAD)

FILE = select(submissions).where(_file)
ADD_FILE = submissions.insert()
FILES_OF = select(func.count()).select_from(submissions).where(submissions.c.node == bindparam("who"))
ADD_NOTE = notes.insert()
TO_TELL = outbox.insert()
ADD_PLANT = plants.insert()
ADD_VOTE = votes.insert()
VOTES = select(votes.c.judge, votes.c.accept, votes.c.tokens).where(
    votes.c.step == bindparam("at_step"), votes.c.submission == bindparam("at_submission")
)

# Who waits in which line for a judge: a proven node in its own, as do those on this machine, and newcomers in that of
# their network. `turn` is a file's place among those of its node.
QUEUE = case(((RECORD == 2) | (submissions.c.network == ""), submissions.c.node), else_=submissions.c.network)
TURN = func.row_number().over(
    partition_by=submissions.c.node, order_by=(submissions.c.step, submissions.c.received, submissions.c.submission)
)
