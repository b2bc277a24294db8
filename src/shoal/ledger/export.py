"""Text export of a ledger: one entry per line, and a last line with their number and the head.

The file verifies with nothing beside it. What no file can show is that it is the newest: that takes a head that a
validator signed and kept, or another copy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from shoal.crypto.signed import canonical
from shoal.errors import LedgerError
from shoal.files import write_whole
from shoal.ledger import chain
from shoal.ledger.acts import FORMAT, Count, Hash, Head, Record
from shoal.ledger.chain import History, TamperedError
from shoal.ledger.entry import Entry, Statement, parsed
from shoal.ledger.store import read_entries

SQLITE = b"SQLite format 3\0"
# Over twice what the largest entry takes; what is cut there is no JSON.
MAX_LINE = 1 << 17
SHOWN_EVERY = 1000


class Closing(Record):
    """The last line."""

    format: Literal[2] = FORMAT
    entries: Count
    head: Hash


def export(entries: Iterable[Entry], target: Path) -> int:
    """Writes the file whole or not at all; how many entries it has."""
    lines, last = [], None
    for entry in entries:
        lines.append(entry.to_line())
        last = entry
    if last is None:
        raise LedgerError(f"export {target}: the ledger has no entries")
    closing = Closing(entries=len(lines), head=last.hash)
    text = "\n".join([*lines, canonical(closing.model_dump(mode="json"))]) + "\n"
    write_whole(target, text.encode(), durable=True)
    return len(lines)


def read_file(path: Path) -> Iterator[Entry]:
    """The entries of a ledger's database or of an export, in order; their content is not checked yet."""
    if not path.is_file():
        raise LedgerError(f"ledger {path}: no such file; give a run's ledger.db or an export")
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE)) == SQLITE
    yield from read_entries(path) if is_database else _read_lines(path)


def _read_lines(path: Path) -> Iterator[Entry]:
    count, last, closing = 0, None, None
    with path.open("rb") as file:
        for raw in iter(lambda: file.readline(MAX_LINE), b""):
            if closing is not None:
                raise TamperedError(count, "stands after the line that closes the file")
            line = raw.removesuffix(b"\n")
            if line.startswith(b'{"entries":'):
                closing = _closing(line, count)
                continue
            try:
                last = Entry.from_line(line)
            except LedgerError as error:
                raise TamperedError(count, str(error)) from None
            yield last
            count += 1
    if closing is None:
        raise TamperedError(count, "is missing, or the line that closes the file is; export it again")
    if closing.entries != count or last is None:
        raise TamperedError(min(count, closing.entries), f"the file has {count} entries and says {closing.entries}")
    if closing.head != last.hash:
        raise TamperedError(
            last.number, f"has hash {last.hash[:12]}, the file says that its head is {closing.head[:12]}"
        )


def _closing(line: bytes, count: int) -> Closing:
    try:
        closing = parsed(Closing, line)
    except LedgerError as error:
        raise TamperedError(count, f"is where the file should end: {error}") from None
    if canonical(closing.model_dump(mode="json")).encode() != line:
        raise TamperedError(count, "is where the file should end, with a line that was changed")
    return closing


def verify_file(
    path: Path,
    coordinator: str | None = None,
    heads: Sequence[Statement] = (),
    show: Callable[[int], None] = lambda _: None,
) -> History:
    """Checks a ledger's file from first to last, and against heads that validators signed and kept.

    `show` is told how far it is, every thousand entries.
    """
    history = chain.verify(_shown(read_file(path), show))
    if coordinator is not None and history.state.coordinator != coordinator:
        raise TamperedError(0, f"is by {history.state.coordinator}, the coordinator should be {coordinator}")
    for statement in heads:
        statement.check()
        if isinstance(statement.act, Head) and statement.ledger == history.ledger:
            _check_kept(history, statement, statement.act)
    return history


def _shown(entries: Iterable[Entry], show: Callable[[int], None]) -> Iterator[Entry]:
    for entry in entries:
        if entry.number % SHOWN_EVERY == 0:
            show(entry.number)
        yield entry


def _check_kept(history: History, statement: Statement, head: Head) -> None:
    if statement.author not in history.state.judges:
        raise LedgerError(f"head {head.number}: signed by {statement.author}, who is not a validator of this run")
    if head.number > history.number:
        raise TamperedError(history.number + 1, f"is missing: {statement.author} signed entry {head.number}")
    if (own := history.hashes[head.number]) != head.hash:
        raise TamperedError(
            head.number,
            f"is {own[:12]} here; {statement.author} signed {head.hash[:12]} with {statement.signature}. "
            "The two histories differ, so one of them was rewritten",
        )
