"""`Ledger` protocol: what writers and readers use, whether the ledger is a file or a contract."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from shoal.crypto.keys import Key
from shoal.ledger.acts import Act
from shoal.ledger.entry import Statement
from shoal.ledger.state import State, Status, holdings, leases, status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Standing:
    """A node as its ledger has it."""

    stake: int
    gift: int
    leaving: int
    locked: int
    earned: int
    accepted: int
    offences: int
    leases: int
    status: Status


@dataclass(frozen=True, slots=True)
class Totals:
    """Credits that do not belong to a node, by where they are."""

    clock: int
    batches: int
    treasury: int
    held: int
    brought_in: int
    paid_out: int
    unsettled: int
    closed: bool
    finished: bool
    """Whether the run is over for good: everything can be withdrawn, and the rest of the treasury be refunded."""


def totals_of(state: State) -> Totals:
    return Totals(
        clock=state.clock,
        batches=len(state.batches),
        treasury=state.treasury,
        held=state.held.total,
        brought_in=state.brought_in,
        paid_out=state.paid_out,
        unsettled=state.unsettled,
        closed=state.closed,
        finished=state.finished,
    )


def standing_of(state: State, address: str) -> Standing | None:
    """None for an address without an account."""
    account = state.accounts.get(address)
    if account is None:
        return None
    return Standing(
        **asdict(holdings(state, account)),
        accepted=account.accepted,
        offences=account.offences,
        leases=leases(state, account),
        status=status(state, account),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """An act in its place among all: what people are shown."""

    number: int
    author: str
    act: Act
    hash: str
    """Of the entry, or of the transaction."""
    at: int
    """When: milliseconds since 1970, or the number of a block."""


class Ledger(Protocol):
    """An append-only record under the rules of `rules.py`."""

    @property
    def run(self) -> str: ...

    def enter(self, key: Key, act: Act) -> bool:
        """Enters an act, signed with its author's key; False if it was there already. `Refused` says which rule it
        breaks. When it returns, the entry is durable."""
        ...

    def enter_all(self, key: Key, acts: Sequence[Act]) -> list[bool]:
        """The same of several in their order; a refusal of any is raised after all are done."""
        ...

    def take(self, statement: Statement) -> bool:
        """Enters what its author signed elsewhere. A chain refuses it: there, authors send transactions."""
        ...

    def stored_lines(self, first: int, max_bytes: int) -> list[str]:
        """Entries from a number on as they are stored, each a JSON string: as many as fit, and at least one if there is
        one. A chain refuses it: it is read there."""
        ...

    def catch_up(self) -> None:
        """Takes in what others have entered."""
        ...

    def look(self, reader: Callable[[State], T]) -> T:
        """Reads the state as of the last `catch_up` or entry, without waiting for anybody; LedgerError before that."""
        ...

    def node(self, address: str) -> Standing | None:
        """None for an address without an account."""
        ...

    def judge(self, address: str) -> int | None:
        """A validator's standing, 0 .. 100; None for an address that is not a validator's."""
        ...

    def jury(self, batch: int) -> tuple[str, ...]:
        """The validators that were drawn to judge a batch."""
        ...

    def outcomes(self, batch: int) -> str:
        """A letter a submission (a, r, v, or x for one that does not count); empty while the batch is not settled."""
        ...

    def totals(self) -> Totals: ...

    def give_gas(self, key: Key, wei: int) -> None:
        """Sees to it, out of the key's own money, that validators can pay for their votes where these cost anything."""
        ...

    @property
    def spent_s(self) -> float: ...

    def stop(self) -> None:
        """Ends what waits; from any thread."""
        ...

    def close(self) -> None: ...
