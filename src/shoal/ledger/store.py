"""The embedded ledger: an append-only SQLite file, single writer with group commit.

Single writer with group commit: queued statements are entered in one transaction and acknowledged after the disk has it
(WAL, `synchronous = FULL`), so many writers share a wait for the disk. The database itself refuses to change or remove
a row, against mistakes; against its owner there are seals and heads.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self, TypeVar

from shoal.crypto.keys import Key
from shoal.errors import LedgerError, StorageError
from shoal.files import locked, make_directory
from shoal.group_commit import GroupCommit
from shoal.ledger import chain
from shoal.ledger.acts import NO_HASH, Act, Head, Open, Terms
from shoal.ledger.entry import Entry, Statement
from shoal.ledger.interface import Standing, Totals, standing_of, totals_of
from shoal.ledger.refusal import Refused
from shoal.ledger.rules import opened
from shoal.ledger.state import State
from shoal.sqlite_mode import reading_mode

LEDGER_FILE = "ledger.db"  # in a run's directory
MAX_TOGETHER = 512
ANSWER_S = 60.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS no_change BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries never change'); END;
CREATE TRIGGER IF NOT EXISTS no_removal BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries stay'); END;
"""
T = TypeVar("T")


class SqliteLedger:
    """A ledger in a file, with the coordinator's key to seal entries. One process at a time writes to it."""

    def __init__(self, path: Path, key: Key, entries: Sequence[Entry], held: ExitStack) -> None:
        self._path, self._key, self._held = path, key, held
        self._database = held.enter_context(closing(_connect(path)))
        self._history = chain.verify(entries)
        self._acts = {(e.statement.author, e.statement.act.name): e.statement.act for e in entries}
        self._lock = threading.Lock()
        self._failed: Exception | None = None
        self.spent_s = 0.0
        """Seconds that entering took, those of waiting for the disk among them."""
        self._writer: GroupCommit[Statement, bool] = GroupCommit("ledger", self._commit, MAX_TOGETHER)

    @classmethod
    def open(cls, path: Path, key: Key, run: str, terms: Terms) -> Self:
        """The ledger of a run, which is begun if there is none. What is there is verified first."""
        make_directory(path.parent)
        with ExitStack() as stack:
            refusal = f"ledger {path}: another process writes to it; stop that one first"
            stack.enter_context(locked(path.with_name(f"{path.name}.lock"), refusal))
            entries = list(read_entries(path)) if path.is_file() else []
            if not entries:
                act = Open(terms=terms)
                opened(run, key.address, act)
                entries = [Entry.after(key, None, Statement.sign(key, run, NO_HASH, act), _now())]
                with closing(_connect(path)) as database:
                    _insert(database, entries, path)
            said = entries[0].statement
            if (said.run, said.author) != (run, key.address):
                raise LedgerError(
                    f"ledger {path}: is that of run {said.run} by {said.author}, not of {run} by {key.address}; "
                    "give another place or the right key"
                )
            return cls(path, key, entries, stack.pop_all())

    @property
    def run(self) -> str:
        return self._history.state.run

    @property
    def name(self) -> str:
        """What statements for this ledger are signed for."""
        return self._history.ledger

    @property
    def state(self) -> State:
        """What the entries add up to; for reading, and while nobody enters."""
        return self._history.state

    @property
    def head(self) -> Head:
        last = self._history.last
        return Head(number=last.number, hash=last.hash)

    def enter(self, key: Key, act: Act) -> bool:
        return self.take(Statement.sign(key, self.run, self.name, act))

    def take(self, statement: Statement) -> bool:
        """Enters what its author signed elsewhere; False if it was there already."""
        return self.take_all([statement])[0]

    def take_all(self, statements: Sequence[Statement]) -> list[bool]:
        """Enters several in their order, with one wait for the disk; a refusal of any is raised after all are done."""
        answers = [self._writer.submit(statement) for statement in statements]
        return [answer.result(ANSWER_S) for answer in answers]

    def enter_all(self, key: Key, acts: Sequence[Act]) -> list[bool]:
        return self.take_all([Statement.sign(key, self.run, self.name, act) for act in acts])

    def catch_up(self) -> None:
        """Nobody else writes here."""

    def give_gas(self, key: Key, wei: int) -> None:
        """Votes cost nothing here."""

    def stop(self) -> None:
        """The disk is not waited for long."""

    def node(self, address: str) -> Standing | None:
        return self.look(lambda state: standing_of(state, address))

    def judge(self, address: str) -> int | None:
        with self._lock:
            judge = self._history.state.judges.get(address)
            return None if judge is None else judge.standing

    def jury(self, batch: int) -> tuple[str, ...]:
        with self._lock:
            return self._history.state.batches[batch].jury

    def outcomes(self, batch: int) -> str:
        with self._lock:
            return self._history.state.batches[batch].outcomes

    def look(self, reader: Callable[[State], T]) -> T:
        """Reads the state while nothing is entered."""
        with self._lock:
            return reader(self._history.state)

    def stored_lines(self, first: int, max_bytes: int) -> list[str]:
        """Entries from a number on as they are on the disk, not parsed: the reader checks them."""
        found, size = list[str](), 0
        with _reading(self._path) as database:
            for (line,) in database.execute("SELECT line FROM entries WHERE number >= ? ORDER BY number", (first,)):
                text = json.dumps(line)
                size += len(text) + 1
                if found and size > max_bytes:
                    break
                found.append(text)
        return found

    def totals(self) -> Totals:
        return self.look(totals_of)

    def close(self) -> None:
        self._writer.close()
        self._held.close()

    def _commit(self, statements: Sequence[Statement]) -> list[bool | Exception]:
        """Whether each statement is new, or why it is refused."""
        began = time.monotonic()
        answers: list[bool | Exception] = []
        entries: list[Entry] = []
        for statement in statements:
            try:
                if self._failed:
                    raise self._failed
                entry = self._admit(statement)
                answers.append(entry is not None)
                if entry:
                    entries.append(entry)
            except Exception as error:
                answers.append(error)
        try:
            if entries:
                _insert(self._database, entries, self._path)
        except Exception as error:
            # The state in memory is ahead of the disk: nothing more is entered until the file is opened again.
            self._failed = error
            answers = [answer if isinstance(answer, Exception) else error for answer in answers]
        self.spent_s += time.monotonic() - began
        return answers

    def _admit(self, statement: Statement) -> Entry | None:
        """The statement as the next entry, applied to the state; None if it was entered before."""
        act, who = statement.act, (statement.author, statement.act.name)
        if (statement.run, statement.ledger) != (self.run, self.name):
            raise LedgerError(f"{act.name}: was signed for ledger {statement.ledger[:12]}, this is {self.name[:12]}")
        if (known := self._acts.get(who)) is not None:
            if known == act:
                return None
            raise Refused("taken", f"{act.name}: {statement.author} has entered another of that name")
        statement.check()
        entry = Entry.after(self._key, self._history.last, statement, _now())
        with self._lock:
            chain.enter(self._history, entry)
        self._acts[who] = act
        return entry


def read_entries(path: Path, first: int = 0) -> Iterator[Entry]:
    """The entries of a ledger's file from a number on, in order; they are not checked yet."""
    if not path.is_file():
        raise LedgerError(f"ledger {path}: no such file; give a run's ledger.db")
    with _reading(path) as database:
        query = "SELECT number, line FROM entries WHERE number >= ? ORDER BY number"
        for expected, (number, line) in enumerate(database.execute(query, (first,)), start=first):
            try:
                entry = Entry.from_line(line)
            except LedgerError as error:
                raise chain.TamperedError(expected, str(error)) from None
            if number != expected:
                raise chain.TamperedError(expected, f"is missing; the next one there has number {number}")
            yield entry


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        file = path.resolve()
        with closing(sqlite3.connect(f"{file.as_uri()}?{reading_mode(file)}", uri=True)) as database:
            yield database
    except sqlite3.Error as error:
        raise LedgerError(
            f"ledger {path}: is not a ledger or cannot be read ({error}); give a run's ledger.db"
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        database.executescript(SCHEMA)
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {path}: cannot be opened ({error})") from error
    return database


def _insert(database: sqlite3.Connection, entries: Sequence[Entry], path: Path) -> None:
    try:
        database.execute("BEGIN IMMEDIATE")
        try:
            rows = [(entry.number, entry.to_line()) for entry in entries]
            database.executemany("INSERT INTO entries VALUES (?, ?)", rows)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise StorageError(
            f"ledger {path}: cannot be written ({error}); nothing acknowledged is lost: free some space or fix the "
            "disk, and open it again"
        ) from error


def _now() -> int:
    return time.time_ns() // 1_000_000
