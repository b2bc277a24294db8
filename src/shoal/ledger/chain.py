"""Hash chain: a history of entries verified from the first to the last, every link, signature, rule and head."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shoal.errors import LedgerError
from shoal.ledger.acts import NO_HASH, Head, Open
from shoal.ledger.entry import Entry
from shoal.ledger.refusal import Refused
from shoal.ledger.rules import apply, opened
from shoal.ledger.state import State


class TamperedError(LedgerError):
    """A history that is not what was entered; `number` is the first bad entry."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"entry {number}: {message}")
        self.number = number


@dataclass(slots=True)
class History:
    """Entries that were all found good, and what they add up to."""

    state: State
    last: Entry
    ledger: str
    """Hash of the first entry: the ledger's name."""
    hashes: list[str] = field(default_factory=list)
    cosigned: dict[str, int] = field(default_factory=dict)
    """Of each validator, the newest entry that it signed a head for."""

    @property
    def number(self) -> int:
        return self.last.number


def begin(entry: Entry) -> History:
    """A history of its first entry."""
    said = entry.statement
    if not isinstance(said.act, Open):
        raise TamperedError(0, f"is {said.act.name}; a ledger begins with open")
    try:
        entry.check(None, said.author, NO_HASH)
        return History(opened(said.run, said.author, said.act), entry, entry.hash, [entry.hash])
    except LedgerError as error:
        raise TamperedError(0, str(error)) from None


def extend(history: History, entry: Entry) -> None:
    """Adds the next entry, if it is good."""
    number = history.number + 1
    try:
        entry.check(history.last, history.state.coordinator, history.ledger)
        enter(history, entry)
    except Refused as error:
        raise TamperedError(number, f"breaks a rule ({error.code}): {error}") from None
    except LedgerError as error:
        raise TamperedError(number, str(error)) from None


def enter(history: History, entry: Entry) -> None:
    """Applies an entry whose place and signatures are known to be right; Refused, and nothing is changed, if not."""
    said = entry.statement
    if isinstance(said.act, Head):
        check_head(history, said.author, said.act)
    apply(history.state, said.author, said.act)
    if isinstance(said.act, Head):
        history.cosigned[said.author] = max(said.act.number, history.cosigned.get(said.author, 0))
    history.last = entry
    history.hashes.append(entry.hash)


def check_head(history: History, author: str, head: Head) -> None:
    """A head that a validator signed must be one of this history's own."""
    if head.number > history.number:
        raise LedgerError(f"{author} signed a head for entry {head.number}, which comes later or was taken away")
    if (own := history.hashes[head.number]) != head.hash:
        raise LedgerError(
            f"{author} signed that entry {head.number} is {head.hash[:12]}, here it is {own[:12]}: the history was "
            "rewritten after it had been signed"
        )


def verify(entries: Iterable[Entry]) -> History:
    """The history of these entries; TamperedError names the first that is not good."""
    history: History | None = None
    for entry in entries:
        if history is None:
            history = begin(entry)
        else:
            extend(history, entry)
    if history is None:
        raise TamperedError(0, "is missing; there are no entries at all")
    return history


@dataclass(frozen=True, slots=True)
class Fork:
    """Two entries with one number, both sealed by the same coordinator: proof that it told two histories."""

    one: Entry
    other: Entry

    def __str__(self) -> str:
        return (
            f"entry {self.one.number} has two forms, both sealed by the coordinator:\n"
            f"  {self.one.hash}  {self.one.statement.act.name}  seal {self.one.seal}\n"
            f"  {self.other.hash}  {self.other.statement.act.name}  seal {self.other.seal}"
        )


def find_fork(one: Iterable[Entry], other: Iterable[Entry]) -> Fork | None:
    """Where two histories part, each found good by itself; None if one only goes on where the other ends."""
    pairs: Iterator[tuple[Entry, Entry]] = zip(one, other, strict=False)
    return next((Fork(a, b) for a, b in pairs if a.hash != b.hash), None)
