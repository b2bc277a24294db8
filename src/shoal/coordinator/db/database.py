"""Single-writer database with group commit: queued requests share one transaction and are answered after it commits.

So nothing is acknowledged that could be lost, there is no race between two requests, and a busy coordinator commits a
few hundred times per second however many nodes ask. One coordinator at a time owns a database: a second is refused.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from shoal.coordinator.db.schema import SCHEMA_VERSION, facts, metadata
from shoal.errors import ConfigError, StorageError, first_line
from shoal.files import locked, make_directory
from shoal.group_commit import GroupCommit
from shoal.protocol.refusal import Refusal
from shoal.wait import wait_until

T = TypeVar("T")
Work = Callable[[Connection], Any]
MAX_AT_ONCE = 256
# A coordinator that was killed may take a moment to be gone.
TAKEOVER_S = 10.0
# Any number will do, as long as it is always the same.
ADVISORY_LOCK = 0x5504_A1


class Database:
    """SQLite or PostgreSQL, by URL, owned by this process until it is closed."""

    def __init__(self, url: str) -> None:
        self._held = contextlib.ExitStack()
        self._engine = self._open(url)
        try:
            with self._engine.begin() as connection:
                metadata.create_all(connection)
                _check_schema(connection, url)
        except SQLAlchemyError as error:
            self._held.close()
            raise StorageError(f"database {_shown(url)}: {first_line(error)}") from error
        self._writer: GroupCommit[Work, Any] = GroupCommit("database", self._commit, MAX_AT_ONCE)

    def do(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Does work in a transaction; the future is done after the commit.

        Work decides before it writes: a `Refusal` is an answer and undoes nothing. Any other error undoes all that the
        work has done, and it may be run again for the sake of others in its transaction.
        """
        return self._writer.submit(work)

    def ask(self, work: Callable[[Connection], T]) -> T:
        return self.do(work).result()

    def close(self) -> None:
        self._writer.close()
        self._engine.dispose()
        self._held.close()

    def _commit(self, batch: Sequence[Work]) -> list[Any]:
        """Does a batch in one transaction, or, if one of several failed, each in its own."""
        try:
            return self._together(batch)
        except Exception as error:
            if len(batch) > 1:
                return [self._alone(work) for work in batch]
            return [_named(error)]

    def _alone(self, work: Work) -> Any:
        try:
            return self._together([work])[0]
        except Exception as error:
            return _named(error)

    def _together(self, batch: Sequence[Work]) -> list[Any]:
        """The answers, refusals among them, of all that was done in one transaction."""
        answers: list[Any] = []
        with self._engine.begin() as connection:
            for work in batch:
                try:
                    answers.append(work(connection))
                except Refusal as refusal:
                    answers.append(refusal)
        return answers

    def _open(self, url: str) -> Engine:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ConfigError(
                f"database {url!r:.60}: must be a URL, as in sqlite:///PATH or postgresql://HOST/NAME"
            ) from None
        kind = parsed.get_backend_name()
        if kind == "sqlite" and parsed.database:
            path = Path(parsed.database)
            make_directory(path.parent)
            taken = f"database {path}: another coordinator has it open; a run has one coordinator"
            self._held.enter_context(locked(path.with_name(f"{path.name}.lock"), taken, TAKEOVER_S))
            engine = create_engine(parsed, pool_size=1, max_overflow=0, connect_args={"check_same_thread": False})
            event.listen(engine, "connect", _tune_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        if kind == "postgresql":
            # A connection that was lost fails its batch, and the jobs, done again one by one, get a new one.
            engine = create_engine(parsed.set(drivername="postgresql+psycopg"), pool_size=1, max_overflow=0)
            event.listen(engine, "connect", _own_postgres)
            return engine
        raise ConfigError(f"database {_shown(url)}: give sqlite:///PATH or postgresql://USER@HOST/NAME")


def _named(error: Exception) -> Exception:
    if isinstance(error, SQLAlchemyError):
        return StorageError(f"database: {first_line(error)}; nothing was changed, try again")
    return error


def _tune_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own idea of transactions is in the way
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _own_postgres(connection: Any, _record: Any) -> None:
    """A lock that ends with the connection, whichever process is killed; taken again whenever one is made."""
    taken = "database: another coordinator has it open; a run has one coordinator"
    lock = f"SELECT pg_try_advisory_lock({ADVISORY_LOCK})"
    connection.autocommit = True
    wait_until(lambda: connection.execute(lock).fetchone()[0], TAKEOVER_S, taken, error=StorageError)
    connection.autocommit = False


def _check_schema(connection: Connection, url: str) -> None:
    found = connection.execute(select(facts.c.value).where(facts.c.name == "schema")).scalar()
    if found is None:
        connection.execute(facts.insert().values(name="schema", value=SCHEMA_VERSION))
    elif found != SCHEMA_VERSION:
        raise StorageError(
            f"database {_shown(url)}: has schema version {found!r}, this program writes {SCHEMA_VERSION!r}; "
            "use the release of shoal that made it, or another database"
        )


def read_fact(connection: Connection, name: str) -> str | None:
    return connection.execute(select(facts.c.value).where(facts.c.name == name)).scalar()


def write_fact(connection: Connection, name: str, value: str) -> None:
    if connection.execute(facts.update().where(facts.c.name == name).values(value=value)).rowcount == 0:
        connection.execute(facts.insert().values(name=name, value=value))


def _shown(url: str) -> str:
    """A URL without its password."""
    return make_url(url).render_as_string(hide_password=True)
