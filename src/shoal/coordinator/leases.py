"""Versions, leases and uploads: what is announced, what steps have, and which file fulfils a lease (idempotent).

Functions of a transaction and a time; each decides before it writes.
"""

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, Row, select

from shoal.coordinator import draws, lease_rules
from shoal.coordinator.db import queries
from shoal.coordinator.db.database import read_fact, write_fact
from shoal.coordinator.db.schema import WITH_FILE, LeaseStatus, versions, weights
from shoal.coordinator.nodes import Node
from shoal.coordinator.outbox import remember_end, remember_steps
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.task_weights import SignedTable

ASKED = "versions asked"  # when the last request that changed versions was signed


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
    """What a node in the database has shown (`lease_rules.record`)."""
    return lease_rules.record(node.accepted, node.rejected, node.owed, node.abandoned)


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


def sign_lease(db: Connection, key: Key, lease: Lease) -> SignedLease:
    """A lease with the root hash of its version as it is announced now."""
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


def signed_row(db: Connection, terms: Terms, key: Key, row: Row[tuple[object, ...]]) -> SignedLease:
    """The lease in a row, signed again."""
    return sign_lease(db, key, lease_of(terms.run, row))


def issued(db: Connection, terms: Terms, key: Key, step: int, submission: int) -> SignedLease:
    """A lease that was given, with the root hash of its version as it is announced now."""
    row = db.execute(queries.LEASE, {"at_step": step, "at_submission": submission}).first()
    if row is None:
        raise Refusal("unknown", f"lease step {step} submission {submission}: was never issued")
    return signed_row(db, terms, key, row)


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
    if status in WITH_FILE:
        if db.execute(queries.FILE, place).one().sha256 != sha256:
            raise Refusal("taken", f"{name}: was already submitted with other bytes; a lease is good for one file")
        return Ticket(row.groups, True, row.network, status)
    late = lease_rules.lateness(step, newest_version(db) or 0, now, row.until)
    if late == "expired" and status in (LeaseStatus.RETURNED, LeaseStatus.RETAKEN):
        raise Refusal("expired", f"{draws.became_of(db, row)}; ask for a lease to make it good")
    if late == "expired":
        ago = f"expired {now - row.until:.0f} s ago; its draw is given again, to this node and its network first"
        raise Refusal("expired", f"{name}: {ago}; ask for a lease to make it good")
    if status not in (LeaseStatus.OPEN, LeaseStatus.EXPIRED, LeaseStatus.RETURNED):
        raise Refusal("expired", draws.became_of(db, row))
    if late == "over":  # no verdict comes any more: what does not suit is not handed in late instead
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
    if ticket.status != LeaseStatus.OPEN:  # it came in time, and was long on its way
        db.execute(queries.MADE_GOOD, {"who": node.address})
    if node.expired:
        db.execute(queries.WORKED, {"who": node.address})
    return True
