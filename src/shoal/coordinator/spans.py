"""Span leases: what the answers of a lease go on with, given once for each span, when it is asked for and not before.

The beacon is drawn then, so nobody knows what a span would be with a version before the version is noted: there is
nothing to choose by. Asked again, it is the same, also with another version.

A function of a transaction and a time; it decides before it writes.
"""

import secrets

from sqlalchemy import Connection, select

from shoal.coordinator.db import queries
from shoal.coordinator.db.schema import LeaseStatus, span_leases
from shoal.coordinator.leases import lease_of, newest_version
from shoal.coordinator.nodes import Node
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.protocol.refusal import Refusal
from shoal.protocol.spans import SpanLease


def give(
    db: Connection,
    terms: Terms,
    key: Key,
    node: Node,
    step: int,
    submission: int,
    first: int,
    version: int,
    now: float,
) -> SpanLease:
    """The lease of the span from token `first` on, with the version that the node asks with."""
    name = f"lease step {step} submission {submission}"
    row = db.execute(queries.LEASE, {"at_step": step, "at_submission": submission}).first()
    if row is None:
        raise Refusal("unknown", f"{name}: was never issued; ask for a lease first")
    if row.node != node.address:
        raise Refusal("not-yours", f"{name}: was issued to {row.node}, not to {node.address}")
    every = terms.span_tokens
    if not every or first % every or not 0 < first < terms.max_new_tokens:
        rule = f"spans have {every} tokens" if every else "workers.in_flight is false, and answers keep their version"
        raise Refusal("malformed", f"{name}: no span begins at token {first}: {rule}")
    own = (span_leases.c.step == step) & (span_leases.c.submission == submission)
    given = {span.first: span for span in db.execute(select(span_leases).where(own)).all()}
    lease = lease_of(terms.run, row)
    if (same := given.get(first)) is not None:
        return SpanLease(first, same.version, same.weights, same.beacon).signed(lease, key)
    if row.status != LeaseStatus.OPEN or now > row.until or step < (newest_version(db) or 0):
        raise Refusal("expired", f"{name}: is over; its draw is given again, ask for a lease")
    before = given[first - every].version if first > every and first - every in given else None
    if first > every and before is None:
        raise Refusal("malformed", f"{name}: the span before the one from token {first} on was not asked for")
    oldest = row.version if before is None else before
    root = db.execute(queries.ROOT, {"number": version}).scalar()
    if root is None or not oldest <= version <= step:
        raise Refusal(
            "malformed",
            f"{name}: version {version} cannot draw its span from token {first} on; announced versions "
            f"{oldest}..{step} can",
        )
    beacon = secrets.randbits(63)
    place = {"step": step, "submission": submission, "first": first}
    db.execute(span_leases.insert().values(**place, version=version, weights=root, beacon=beacon))
    return SpanLease(first, version, root, beacon).signed(lease, key)
