"""The statements of the busiest requests, built once: building one takes four times as long as running it."""

from sqlalchemy import Exists, Table, and_, bindparam, case, exists, func, select

from shoal.swarm.states import State, holds_leases
from shoal.swarm.tables import beacons, leases, nodes, nonces, outbox, plants, submissions, versions, votes


def _planted_bad(files: Table) -> Exists:
    return exists().where(
        plants.c.letter == "r", plants.c.step == files.c.step, plants.c.submission == files.c.submission
    )


_HOLDERS = [state.value for state in State if holds_leases(state)]
_own = nodes.c.address == bindparam("who")
_of_steps = leases.c.step.between(bindparam("first"), bindparam("last"))
_lease = (leases.c.step == bindparam("at_step")) & (leases.c.submission == bindparam("at_submission"))
_file = (submissions.c.step == bindparam("at_step")) & (submissions.c.submission == bindparam("at_submission"))

NODE = select(nodes).where(_own)
COUNT_NODES = select(func.count()).select_from(nodes)
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
NEWEST = select(func.max(versions.c.number))
ROOTS = select(versions.c.number, versions.c.root).where(
    versions.c.number.between(bindparam("first"), bindparam("last"))
)
NEWEST_BEACON = select(beacons).order_by(beacons.c.number.desc()).limit(1)

OWN_LEASES = (
    select(leases)
    .where(leases.c.node == bindparam("who"), leases.c.status == "open", leases.c.until >= bindparam("now"), _of_steps)
    .order_by(leases.c.step, leases.c.submission)
)
LAST_NUMBER = select(func.max(leases.c.submission)).where(leases.c.step == bindparam("at_step"))
ADD_LEASE = leases.insert()
LEASE = select(leases).where(_lease)
USED = leases.update().where(_lease).values(status="used")
# What a node has shown so far, as `leasing.record_of`.
_record = case(
    (nodes.c.expired > 0, 0),
    (and_(nodes.c.accepted == 0, nodes.c.abandoned > 0), 0),
    (nodes.c.accepted == 0, 1),
    else_=2,
)
LEASED = (
    select(leases.c.step, func.sum(leases.c.groups))
    .join(nodes, nodes.c.address == leases.c.node)
    .where(
        _of_steps,
        leases.c.status == "open",
        leases.c.until >= bindparam("now"),
        nodes.c.state.in_(_HOLDERS),
        _record >= bindparam("record"),
    )
    .group_by(leases.c.step)
)
# Without what is known to be bad, which nobody trains on.
LEASED_GOOD = LEASED.where(~_planted_bad(leases))
ARRIVED = (
    select(submissions.c.step, func.sum(submissions.c.groups), func.sum(submissions.c.signal))
    .where(
        submissions.c.step.between(bindparam("first"), bindparam("last")),
        submissions.c.accept.is_not(False),
    )
    .group_by(submissions.c.step)
)
PLANTED_BAD = _planted_bad(submissions)
ARRIVED_GOOD = ARRIVED.where(~PLANTED_BAD)

FILE = select(submissions).where(_file)
ADD_FILE = submissions.insert()
TO_TELL = outbox.insert()
ADD_PLANT = plants.insert()
ADD_VOTE = votes.insert()
VOTES = select(votes.c.judge, votes.c.accept, votes.c.tokens).where(
    votes.c.step == bindparam("at_step"), votes.c.submission == bindparam("at_submission")
)
