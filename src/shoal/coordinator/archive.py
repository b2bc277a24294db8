"""Read-only access to a coordinator's database and uploads, while it runs or after it has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from shoal.coordinator.db import queries
from shoal.coordinator.db.database import read_fact
from shoal.coordinator.db.schema import leases, nodes, plants, span_leases, submissions
from shoal.coordinator.draws import standing
from shoal.coordinator.leases import lease_of
from shoal.coordinator.rates_table import FACT
from shoal.coordinator.uploads import object_name
from shoal.errors import ConfigError, StorageError, first_line
from shoal.protocol.lease import Lease
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.protocol.spans import SpanLease
from shoal.rundir import RunDir
from shoal.sqlite_mode import reading_mode

HOME = "coordinator"
STATE = "state.db"
UPLOADS = "uploads"


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that was handed in and is still there."""

    lease: Lease
    path: Path
    accept: bool | None
    """None while it waits for a verdict."""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What is on record of a file that was handed in."""

    lease: Lease
    sha256: str
    profile: str
    """How its node said that it computes; empty if it did not say, or was forgotten since."""
    planted: bool
    """Whether it is the planter's."""
    spans: tuple[SpanLease, ...] = ()
    """What its answers went on with, as it was given, without signatures."""


@dataclass(frozen=True, slots=True)
class OnRecord:
    """A node's declared profile, and the leases that it let expire."""

    profile: str
    abandoned: int
    reason: str
    """What follows from them, or why the node gets no leases."""


def has_records(run: RunDir) -> bool:
    """Whether the coordinator's database can be read from here: not before its first start, and not in the directory
    of a node that joined from another machine."""
    return bool(run.config.swarm.database) or (run.path / HOME / STATE).exists()


@contextmanager
def reading(run: RunDir) -> Iterator[Connection]:
    """The coordinator's database, to read only."""
    file = (run.path / HOME / STATE).resolve()
    url = run.config.swarm.database.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(url or f"sqlite:///file:{file}?{reading_mode(file)}&uri=true")
    try:
        with engine.connect() as db:
            yield db
    except SQLAlchemyError as error:
        raise StorageError(
            f"run {run.path}: its coordinator's database cannot be read ({first_line(error)})"
        ) from error
    finally:
        engine.dispose()


def sums_of(run: RunDir) -> tuple[dict[str, int], dict[str, int]] | None:
    """Nodes by state and files by verdict; None where the records are not, as on a machine that joined."""
    if not has_records(run):
        return None
    with reading(run) as db:
        states: dict[str, int] = dict(db.execute(select(nodes.c.state, func.count()).group_by(nodes.c.state)).all())
        verdicts = select(submissions.c.accept, func.count()).group_by(submissions.c.accept)
        by: dict[bool | None, int] = dict(db.execute(verdicts).all())
    return states, {"accepted": by.get(True, 0), "refused": by.get(False, 0), "unjudged": by.get(None, 0)}


def handed_in(run: RunDir, step: int, submission: int) -> HandedIn | None:
    """What a run has on record for a submission; None if it has nothing (any more)."""
    if not has_records(run):
        return None
    query = (
        select(leases, submissions.c.sha256, nodes.c.profile, plants.c.letter)
        .join(submissions, (submissions.c.step == leases.c.step) & (submissions.c.submission == leases.c.submission))
        .outerjoin(nodes, nodes.c.address == leases.c.node)
        .outerjoin(plants, (plants.c.step == leases.c.step) & (plants.c.submission == leases.c.submission))
        .where(submissions.c.step == step, submissions.c.submission == submission)
    )
    own = (span_leases.c.step == step) & (span_leases.c.submission == submission)
    with reading(run) as db:
        row = db.execute(query).first()
        given = db.execute(select(span_leases).where(own).order_by(span_leases.c.first)).all()
    if row is None:
        return None
    lease, planted = lease_of(run.config.name, row), row.letter is not None
    spans = tuple(SpanLease(span.first, span.version, span.weights, span.beacon) for span in given)
    return HandedIn(lease, row.sha256, row.profile or "", planted, spans)


def node_of(db: Connection, address: str) -> OnRecord | None:
    """What a coordinator's status has on a node and no ledger has; None if it is unknown."""
    row = db.execute(queries.NODE, {"who": address}).first()
    if row is None:
        return None
    return OnRecord(row.profile, row.abandoned, row.reason or standing(row.accepted, row.rejected, row.owed))


def rates_of(run: RunDir) -> RatesTable | None:
    """The run's honest rates as its coordinator stored them; None where its records are not."""
    if not has_records(run):
        return None
    with reading(run) as db:
        stored = read_fact(db, FACT)
    return SignedRates.model_validate_json(stored).rates if stored is not None else None


def coordinator_of(run: RunDir) -> str | None:
    """The coordinator's address, which its signature under the honest rates shows; None where its records are not, or
    it has not started yet. Its key is not needed for that."""
    if not has_records(run):
        return None
    with reading(run) as db:
        stored = read_fact(db, FACT)
    return SignedRates.model_validate_json(stored).signer if stored is not None else None


def kept_steps(db: Connection) -> list[int]:
    """Steps of which files are still there."""
    query = select(submissions.c.step).where(submissions.c.kept).distinct().order_by(submissions.c.step)
    return list(db.execute(query).scalars())


def kept_files(db: Connection, run: RunDir, step: int) -> list[Kept]:
    """The files of a step in the order of their numbers."""
    where = run.config.swarm.store or str(run.path / HOME / UPLOADS)
    if "://" in where:
        raise ConfigError(f"run {run.path}: its rollouts are stored in {where}; fetch them from there to read them")
    query = (
        select(leases, submissions.c.sha256, submissions.c.accept)
        .join(submissions, (submissions.c.step == leases.c.step) & (submissions.c.submission == leases.c.submission))
        .where(submissions.c.step == step, submissions.c.kept)
        .order_by(submissions.c.submission)
    )
    return [
        Kept(lease_of(run.config.name, row), Path(where) / object_name(step, row.submission, row.sha256), row.accept)
        for row in db.execute(query)
    ]
