"""Lease allocation and uploads: which node gets work for which step, and which file fulfils a lease (idempotent).

Functions of a transaction and a time; each decides before it writes.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, Row, select

from shoal.coordinator import draws
from shoal.coordinator.db import queries
from shoal.coordinator.db.database import read_fact, write_fact
from shoal.coordinator.db.schema import LeaseStatus, versions, weights
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.node_states import Event, State, after, may_lease
from shoal.coordinator.nodes import Node, known
from shoal.coordinator.outbox import remember_end, remember_steps
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount, next_grant
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.task_weights import SignedTable

# Signal rates are judged by this many steps before the newest version's.
MEMORY = 4
ASKED = "versions asked"  # when the last request that changed versions was signed
# What newcomers of all networks may have under way for a step, in multiples of the most that it takes: it bounds the
# disk that they fill, and leaves room for an honest one among many.
MAX_NEWCOMERS = 16
# Leases that a node with a record may hold without stake: one whose answers are generated, one that takes the places
# of answers that have ended, and one that is scored and sent.
PIPELINE = 3


@dataclass(frozen=True, slots=True)
class NoLease:
    """There is no work for a node now, and why."""

    reason: str


def announce(
    db: Connection, terms: Terms, number: int, root: str, now: float, table: SignedTable | None = None
) -> bool:
    """Makes a version known, and what tasks are drawn by from then on. The same again changes nothing; another content
    under a known number is refused. Whether it is new.

    The step before the one that yielded it is over for everybody by now, and goes to the ledger; at the end all are.
    """
    known = db.execute(select(versions.c.root).where(versions.c.number == number)).scalar()
    if known is not None and known != root:
        raise Refusal(
            "taken", f"version {number}: is announced as {known[:12]}, not {root[:12]}; retract it before another one"
        )
    if number > terms.steps:
        raise Refusal(
            "malformed", f"version {number}: this run ends with version {terms.steps}; is its config the trainer's?"
        )
    if (table is not None) != bool(terms.tables):
        which = (
            "by a table of weights, which must come with it" if terms.tables else "alike, without a table of weights"
        )
        raise Refusal(
            "malformed", f"version {number}: this run draws tasks {which}; is its sampler.kind the trainer's?"
        )
    if table is not None:
        _keep_table(db, terms, table)
    if known is None:
        db.execute(versions.insert().values(number=number, root=root, announced=now))
        remember_steps(db, number if number >= terms.steps else number - 1)
        if number >= terms.steps:
            remember_end(db, terms.steps)
    return known is None


def _keep_table(db: Connection, terms: Terms, signed: SignedTable) -> None:
    """Decides before it writes. Leases draw by the last few; older ones cannot be announced otherwise all the same."""
    number = signed.version
    digest = hashlib.sha256(signed.table.to_json().encode()).hexdigest()
    known = db.execute(select(weights.c.sha256).where(weights.c.version == number)).scalar()
    if known is not None and known != digest:
        raise Refusal(
            "taken", f"version {number}: its table of weights is {known[:12]}, not {digest[:12]}; retract it first"
        )
    newest = max(number, newest_version(db) or 0)
    if known is None:
        db.execute(weights.insert().values(version=number, sha256=digest))
    if number > newest - terms.tables:
        db.execute(weights.update().where(weights.c.version == number).values(signed=signed.model_dump_json()))
    db.execute(weights.update().where(weights.c.version <= newest - terms.tables).values(signed=None))


def table_of(db: Connection, number: int) -> str:
    """The signed table that came with a version."""
    found = db.execute(select(weights.c.signed).where(weights.c.version == number)).scalar()
    if found is None:
        raise Refusal("unknown", f"version {number}: there is no table of weights for it, or it has been deleted")
    return str(found)


def retract(db: Connection, after_version: int) -> list[int]:
    """Takes back versions above a number, and ends the leases that name them; says which."""
    gone = versions.c.number > after_version
    numbers = list(db.execute(select(versions.c.number).where(gone).order_by(versions.c.number)).scalars())
    if numbers:
        db.execute(versions.delete().where(gone))
    db.execute(weights.delete().where(weights.c.version > after_version))
    draws.void(db, after_version)
    return numbers


def must_be_newest(db: Connection, asked: float) -> None:
    """Refuses a request about versions that was signed before one already carried out: it was delayed in transit, and
    its sender has long sent it again and moved on."""
    newest = float(read_fact(db, ASKED) or 0.0)
    if asked < newest:
        raise Refusal(
            "replay",
            f"versions: this was signed {newest - asked:.3f} s before a request already done; sign it again",
        )


def note_newest(db: Connection, asked: float) -> None:
    write_fact(db, ASKED, repr(asked))


def newest_version(db: Connection) -> int | None:
    return db.execute(queries.NEWEST).scalar()


def record_of(node: Node) -> int:
    """What a node has shown: 2 that it does its work, 1 nothing yet, 0 that it does not."""
    if node.accepted > node.rejected + queries.FILES_PER_DRAW * node.owed:
        return 2
    return 0 if node.rejected or node.abandoned else 1


def counts(
    db: Connection,
    first: int,
    last: int,
    now: float,
    record: int = 0,
    near: tuple[str, int] = ("", 2),
    *,
    bad_too: bool = True,
) -> dict[int, StepCount]:
    """What steps have: groups that arrived and were not rejected, and groups on leases that are out.

    Leases, and files without a verdict, are counted of nodes with at least this record, or, in the network `near`, with
    the record there. Keys cost nothing, and each may hold a lease or hand in rubbish: a stranger with many would stop a
    run if nodes that have shown that they work waited for them, or newcomers for those of another network. What is
    accepted counts.

    Without `bad_too` files that the planter hands in as bad are not counted: no step waits for them, or ends with them.
    """
    asked = {"first": first, "last": last, "record": record, "network": near[0], "near": near[1]}
    arrived = db.execute(queries.ARRIVED if bad_too else queries.ARRIVED_GOOD, asked)
    out = db.execute(queries.LEASED if bad_too else queries.LEASED_GOOD, {**asked, "now": now})
    seen = {step: (int(groups), int(signal)) for step, groups, signal in arrived}
    leased = {step: int(groups) for step, groups in out}
    return {
        step: StepCount(*seen.get(step, (0, 0)), leased.get(step, 0)) for step in sorted(seen.keys() | leased.keys())
    }


def count_of(db: Connection, terms: Terms, step: int, now: float) -> StepCount:
    """What one step has. Where it has all the groups that it may, leases of newcomers hold it up no longer."""
    count = counts(db, step, step, now).get(step, StepCount())
    if count.seen >= terms.max_groups:
        proven = counts(db, step, step, now, record=2).get(step, StepCount())
        return StepCount(count.seen, count.signal, proven.leased)
    return count


def _is_crowded(db: Connection, terms: Terms, network: str, newest: int, now: float) -> str:
    """Why a newcomer of a network gets nothing for now; empty if it does.

    Newcomers of one network share what one newcomer may have under way: free keys on one machine are one newcomer. Each
    node there that has shown that it works makes room for one more, so that a thousand behind one router are all in
    after ten rounds of doubling. Where the run has a list of nodes, or on this machine, keys are not free.

    A file that was refused keeps its room for as long as a lease lasts: rubbish that is found out at once would
    otherwise come as fast as it is judged, with a new key each time, and fill the tables and the validator's time.
    """
    if not network or terms.allow is not None:
        return ""
    lately = {"lately": now - terms.lease_s, "recent": newest - MEMORY}
    where = {"network": network, "now": now, "first": newest}
    out = db.execute(queries.NEWCOMERS_LEASES, where).scalar_one()
    unjudged = db.execute(queries.NEWCOMERS_FILES, where).scalar_one()
    most = terms.probation_files + db.execute(queries.PROVEN_NEIGHBOURS, where).scalar_one()
    refused = db.execute(queries.NEWCOMERS_REFUSED, {"network": network, **lately}).scalar_one()
    if out + unjudged + refused < most:
        return ""
    return (
        f"new nodes of network {network} have {out} leases, {unjudged} files without a verdict, and {refused} refused "
        f"in the last {terms.lease_s:.0f} s; {most} may be"
    )


def grant(
    db: Connection,
    terms: Terms,
    key: Key,
    node: Node,
    version: int,
    holding: Collection[tuple[int, int]],
    may_hold: int,
    now: float,
    plants: Plants | None = None,
    network: str = "",
) -> SignedLease | NoLease:
    """The node's own open lease, if it does not name it, so that a restarted node goes on; then a draw that was let go
    (`draws`); a new one otherwise.

    `version` is the one that the node would begin with, and the one that a new lease names. `may_hold` is how many
    leases its stake allows, `network` where it asks from, empty for this machine.
    """
    newest = newest_version(db)
    if draws.expire(db, now):
        node = known(db, node.address)
    if node.role != "worker":
        raise Refusal("not-allowed", f"{node.address}: joined as {node.role}; only workers get leases")
    state = after(State(node.state), Event.SEEN)
    if not may_lease(state):
        raise Refusal("suspended", f"{node.address}: is {state} because it {node.reason}; it gets no leases for now")
    if newest is None or version > newest:
        return NoLease(f"version {version} is not announced by the trainer yet")
    last = min(version + terms.async_level, terms.steps - 1)
    first = max(version, newest)
    held = db.execute(queries.OWN_LEASES, {"who": node.address}).all()
    idle = [row for row in held if (row.step, row.submission) not in holding]
    for row in idle:
        if row.step >= newest:
            return _signed(db, terms, key, row)
    missed = draws.missed(idle, newest)
    own = [row for row in held if row not in missed]
    record = record_of(node)
    if record == 2:
        may_hold = max(may_hold, min(PIPELINE, terms.leases))
    if len(own) >= may_hold:
        return NoLease(f"{node.address} holds {len(own)} leases, and may hold {may_hold} at once")
    # As many as it has had accepted: after honest work, too, nobody fills a run with files that nobody has looked at.
    trust = max(terms.probation_files, node.accepted)
    unjudged = db.execute(queries.UNJUDGED, {"who": node.address, "first": newest}).scalar_one()
    if unjudged >= trust:
        return NoLease(f"{unjudged} files of {node.address} wait for a verdict, and {trust} may; they come first")
    if record < 2 and (crowded := _is_crowded(db, terms, network, newest, now)):
        return NoLease(crowded)
    found = counts(db, max(0, newest - MEMORY), last, now, 2, (network, record), bad_too=False)
    granted = next_grant(
        found,
        version=version,
        async_level=terms.async_level,
        steps=terms.steps,
        needed=terms.groups_per_step,
        max_seen=terms.max_groups,
        submission_groups=terms.groups_per_submission,
        first_step=newest,
        online_filter=terms.online_filter,
    )
    if granted is None:
        return NoLease(f"steps {first}..{last} are provided for; version {newest + 1} brings more work")
    if record < 2 and network:
        all_of = counts(db, granted.step, granted.step, now).get(granted.step, StepCount())
        if all_of.seen + all_of.leased >= MAX_NEWCOMERS * terms.max_groups:
            return NoLease(f"step {granted.step}: so many new nodes work on it that it takes no more of them")
    here = found.get(granted.step, StepCount())
    room = terms.max_groups - here.seen - here.leased
    again = missed[0] if missed else draws.waiting_for(db, terms, node.address, network, now)
    if again is None:
        if why := draws.why_no_other(db, terms, node, own, network, now):
            return NoLease(why)
        # Drawn now: nobody can choose an address, or a lease, that suits it.
        drawn = draws.Draw(secrets.randbits(63), granted.groups)
    else:
        drawn = draws.give_again(db, again, node.address, network, room)
        if again.node == node.address and again.version >= granted.step - terms.async_level:
            version = again.version  # another one would answer otherwise, and be waited for if these do not suit
    return _issue(db, terms, key, node, network, plants, granted.step, version, drawn, len(own), now)


def _issue(
    db: Connection,
    terms: Terms,
    key: Key,
    node: Node,
    network: str,
    plants: Plants | None,
    step: int,
    version: int,
    drawn: draws.Draw,
    beside: int,
    now: float,
) -> SignedLease:
    number = db.execute(queries.LAST_NUMBER, {"at_step": step}).scalar()
    lasts_s = terms.lease_for(drawn.groups, node.tokens, node.busy_s, drawn.given, beside)
    lease = Lease(
        run=terms.run,
        node=node.address,
        step=step,
        submission=0 if number is None else number + 1,
        version=version,
        groups=drawn.groups,
        beacon=drawn.beacon,
        deadline=now + lasts_s,
        draw_of=drawn.draw_of,
    )
    fields = {name: value for name, value in asdict(lease).items() if name != "run"}
    times = {"issued": now, "until": lease.deadline, "given": drawn.given}
    db.execute(queries.ADD_LEASE, {**fields, **times, "status": LeaseStatus.OPEN, "network": network})
    if node.network != network:
        db.execute(queries.MOVED, {"who": node.address, "network": network})
    letter = plants.letter_of(lease.node, lease.step, lease.submission) if plants else "."
    if letter != ".":
        db.execute(queries.ADD_PLANT, {"step": lease.step, "submission": lease.submission, "letter": letter})
    return _sign(db, key, lease)


def _sign(db: Connection, key: Key, lease: Lease) -> SignedLease:
    return SignedLease.sign(lease, db.execute(queries.ROOT, {"number": lease.version}).scalar() or "", key)


def lease_of(run: str, row: Row[tuple[object, ...]]) -> Lease:
    """The lease in a row, as it was signed."""
    return Lease(
        run=run,
        node=row.node,
        step=row.step,
        submission=row.submission,
        version=row.version,
        groups=row.groups,
        beacon=row.beacon,
        deadline=row.deadline,
        draw_of=row.draw_of,
    )


def _signed(db: Connection, terms: Terms, key: Key, row: Row[tuple[object, ...]]) -> SignedLease:
    return _sign(db, key, lease_of(terms.run, row))


def issued(db: Connection, terms: Terms, key: Key, step: int, submission: int) -> SignedLease:
    """A lease that was given, with the root hash of its version as it is announced now."""
    row = db.execute(queries.LEASE, {"at_step": step, "at_submission": submission}).first()
    if row is None:
        raise Refusal("unknown", f"lease step {step} submission {submission}: was never issued")
    return _signed(db, terms, key, row)


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to send a lease's file; `done` if these bytes are here already."""

    groups: int
    done: bool
    network: str
    status: LeaseStatus


def may_upload(db: Connection, node: Node, step: int, submission: int, sha256: str, signal: int, now: float) -> Ticket:
    """Whether the node may hand in a file with this hash under this lease; a Refusal says why not."""
    place = {"at_step": step, "at_submission": submission}
    row = db.execute(queries.LEASE, place).first()
    name = f"lease step {step} submission {submission}"
    if row is None:
        raise Refusal("unknown", f"{name}: was never issued; ask for a lease first")
    if row.node != node.address:
        raise Refusal("not-yours", f"{name}: was issued to {row.node}, not to {node.address}")
    status = LeaseStatus(row.status)
    if status in (LeaseStatus.USED, LeaseStatus.REFUSED):
        if db.execute(queries.FILE, place).one().sha256 != sha256:
            raise Refusal("taken", f"{name}: was already submitted with other bytes; a lease is good for one file")
        return Ticket(row.groups, True, row.network, status)
    if now > row.until:
        late = f"expired {now - row.until:.0f} s ago; its draw is given again, to this node and its network first"
        raise Refusal("expired", f"{name}: {late}; ask for a lease to make it good")
    if status not in (LeaseStatus.OPEN, LeaseStatus.EXPIRED):
        raise Refusal("expired", draws.became_of(db, row))
    if step < (newest_version(db) or 0):  # no verdict comes any more: what does not suit is not handed in late instead
        raise Refusal("expired", f"{name}: step {step} is over; its draw is given again, ask for a lease")
    if signal > row.groups:
        raise Refusal("malformed", f"{name}: is for {row.groups} groups, so {signal} groups with signal are too many")
    return Ticket(row.groups, False, row.network, status)


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
    """Makes a file in the store the lease's one; False if it was that already.

    What counts is when it began to come: an honest file is not lost to a slow line, unless its step is over or its draw
    was given again meanwhile.
    """
    ticket = may_upload(db, node, step, submission, sha256, signal, began)
    if ticket.done:
        return False
    db.execute(
        queries.ADD_FILE,
        {
            "step": step,
            "submission": submission,
            "node": node.address,
            "sha256": sha256,
            "size": size,
            "groups": ticket.groups,
            "signal": signal,
            "received": now,
            "kept": True,
            "tokens": 0,
            "ordinal": db.execute(queries.FILES_OF, {"who": node.address}).scalar_one() + 1,
            "entered": False,
            "network": ticket.network,
        },
    )
    db.execute(queries.ENDS, {"at_step": step, "at_submission": submission, "as": LeaseStatus.USED})
    if ticket.status == LeaseStatus.EXPIRED:  # it came in time, and was long on its way
        db.execute(queries.MADE_GOOD, {"who": node.address})
    if node.expired:
        db.execute(queries.WORKED, {"who": node.address})
    return True
