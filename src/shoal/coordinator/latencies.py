"""How long work takes on its way through a run: from a version to its first rollout and to a full batch, and from a
file's arrival to its verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from shoal.coordinator.db.schema import leases, submissions, versions
from shoal.coordinator.leases import newest_version
from shoal.coordinator.policy import Terms


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds; None for what has not happened yet."""

    version: int
    first_rollout_s: float | None
    """From the announcement of the version to the first file that was made with it."""
    full_batch_s: float | None
    """From there until the step that trains this version had enough groups with an accept verdict; 0 if it had them
    before, from older versions."""
    verdict_p50_s: float | None
    """From a file's arrival to its verdict: half of the files of the last steps were faster."""
    verdict_p95_s: float | None


def latencies(db: Connection, terms: Terms, version: int) -> Latencies:
    """Those of one version, and of verdicts on the files of the steps that it may serve and of the one before."""
    announced = db.execute(select(versions.c.announced).where(versions.c.number == version)).scalar()
    p50, p95 = _verdicts(db, version - 1, version + terms.async_level)
    if announced is None:
        return Latencies(version, None, None, p50, p95)
    first, full = _first_file(db, terms, version, announced), _full(db, terms, version)
    return Latencies(
        version=version,
        first_rollout_s=None if first is None else first - announced,
        full_batch_s=None if full is None else max(0.0, full - announced),
        verdict_p50_s=p50,
        verdict_p95_s=p95,
    )


def latest_latencies(db: Connection, terms: Terms) -> Latencies | None:
    """Those of the newest version, or of the one before it while the newest has no full batch; None before the first
    version."""
    newest = newest_version(db)
    if newest is None:
        return None
    found = latencies(db, terms, newest)
    return latencies(db, terms, newest - 1) if found.full_batch_s is None and newest else found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed; None without any."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _first_file(db: Connection, terms: Terms, version: int, announced: float) -> float | None:
    """A file that came before the announcement was made with a version of this number that was taken back."""
    own = (leases.c.step == submissions.c.step) & (leases.c.submission == submissions.c.submission)
    found: float | None = db.execute(
        select(func.min(submissions.c.received))
        .join(leases, own)
        .where(
            leases.c.step.between(version, version + terms.async_level),
            leases.c.version == version,
            submissions.c.received >= announced,
        )
    ).scalar()
    return found


def _full(db: Connection, terms: Terms, step: int) -> float | None:
    """When a step had all the groups that it needs."""
    groups = 0
    rows = db.execute(
        select(submissions.c.judged, submissions.c.groups, submissions.c.signal)
        .where(submissions.c.step == step, submissions.c.accept)
        .order_by(submissions.c.judged)
    )
    for row in rows:
        groups += row.signal if terms.online_filter else row.groups
        if groups >= terms.groups_per_step:
            return float(row.judged)
    return None


def _verdicts(db: Connection, first: int, last: int) -> tuple[float | None, float | None]:
    rows = db.execute(
        select(submissions.c.judged - submissions.c.received).where(
            submissions.c.step.between(first, last), submissions.c.judged.is_not(None)
        )
    )
    took = [float(seconds) for (seconds,) in rows]
    return percentile(took, 0.5), percentile(took, 0.95)
