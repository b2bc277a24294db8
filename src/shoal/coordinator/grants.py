"""Lease allocation: which node gets work for which step, and why another one gets none for now.

Functions of a transaction and a time; each decides before it writes.
"""

import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from shoal.coordinator import draws, lease_rules
from shoal.coordinator.db import queries
from shoal.coordinator.db.schema import LeaseStatus
from shoal.coordinator.honeypots import Plants
from shoal.coordinator.lease_rules import MEMORY
from shoal.coordinator.leases import counts, newest_version, record_of, sign_lease, signed_row
from shoal.coordinator.node_states import Event, State, after, may_lease
from shoal.coordinator.nodes import Node, known
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.protocol.lease import Lease
from shoal.protocol.pacing import StepCount
from shoal.protocol.refusal import Refusal
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.stores import PROVEN


@dataclass(frozen=True, slots=True)
class NoLease:
    """There is no work for a node now, and why."""

    reason: str


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
    newest, node = newest_version(db), _admitted(db, node, now)
    if newest is None or version > newest:
        return NoLease(f"version {version} is not announced by the trainer yet")
    held = db.execute(queries.OWN_LEASES, {"who": node.address}).all()
    idle = [row for row in held if (row.step, row.submission) not in holding]
    if under_way := next((row for row in idle if row.step >= newest), None):
        return signed_row(db, terms, key, under_way)
    missed = draws.missed(idle, newest)
    own = [row for row in held if row not in missed]
    if why := _why_no_more(db, terms, node, len(own), may_hold, newest, network, now):
        return NoLease(why)
    last, near = min(version + terms.async_level, terms.steps - 1), (network, record_of(node))
    found = counts(db, max(0, newest - MEMORY), last, now, PROVEN, near, bad_too=False)
    granted = lease_rules.next_step(terms, found, version, newest)
    if granted is None:
        return NoLease(f"steps {max(version, newest)}..{last} are provided for; version {newest + 1} brings more work")
    if record_of(node) < PROVEN and network and _is_flooded(db, terms, granted.step, now):
        return NoLease(f"step {granted.step}: so many new nodes work on it that it takes no more of them")
    again = missed[0] if missed else draws.waiting_for(db, terms, node.address, network, newest, now)
    if again is None:
        if why := draws.why_no_other(db, terms, node, own, network, now):
            return NoLease(why)
        # Drawn now: nobody can choose an address, or a lease, that suits it.
        drawn = draws.Draw(secrets.randbits(63), granted.groups)
    else:
        here = found.get(granted.step, StepCount())
        drawn = draws.give_again(db, again, node.address, network, terms.max_groups - here.seen - here.leased)
        is_same = again.status != LeaseStatus.REFUSED and (
            again.node == node.address or again.status == LeaseStatus.RETURNED
        )
        if is_same and lease_rules.keeps_version(again.version, granted.step, terms):
            version = again.version  # another one would answer otherwise, and be waited for if these do not suit
    signed = _issue(db, terms, key, node, network, plants, granted.step, version, drawn, len(own), now)
    if again is not None and again.version == version:
        draws.carry_spans(db, again, signed.lease.step, signed.lease.submission)
    return signed


def _admitted(db: Connection, node: Node, now: float) -> Node:
    """The node as it is once leases that are over have expired; a Refusal unless it may have leases."""
    if draws.expire(db, now):
        node = known(db, node.address)
    if node.role != "worker":
        raise Refusal("not-allowed", f"{node.address}: joined as {node.role}; only workers get leases")
    state = after(State(node.state), Event.SEEN)
    if not may_lease(state):
        raise Refusal("suspended", f"{node.address}: is {state} because it {node.reason}; it gets no leases for now")
    return node


def _why_no_more(
    db: Connection, terms: Terms, node: Node, held: int, may_hold: int, newest: int, network: str, now: float
) -> str:
    """Why a node that holds so many leases gets no other for now, whatever steps are short of; empty if it does."""
    record = record_of(node)
    may_hold = lease_rules.may_hold(record, may_hold, terms)
    if held >= may_hold:
        return f"{node.address} holds {held} leases, and may hold {may_hold} at once"
    trust = lease_rules.unjudged_allowed(node.accepted, terms)
    unjudged = db.execute(queries.UNJUDGED, {"who": node.address, "first": newest}).scalar_one()
    if unjudged >= trust:
        return f"{unjudged} files of {node.address} wait for a verdict, and {trust} may; they come first"
    return _is_crowded(db, terms, network, newest, now) if record < PROVEN else ""


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
    most = lease_rules.newcomers_allowed(db.execute(queries.PROVEN_NEIGHBOURS, where).scalar_one(), terms)
    refused = db.execute(queries.NEWCOMERS_REFUSED, {"network": network, **lately}).scalar_one()
    if out + unjudged + refused < most:
        return ""
    return (
        f"new nodes of network {network} have {out} leases, {unjudged} files without a verdict, and {refused} refused "
        f"in the last {terms.lease_s:.0f} s; {most} may be"
    )


def _is_flooded(db: Connection, terms: Terms, step: int, now: float) -> bool:
    """Whether a step has all that newcomers may have under way for it."""
    return lease_rules.is_flooded(counts(db, step, step, now).get(step, StepCount()), terms)


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
    return sign_lease(db, key, lease)
