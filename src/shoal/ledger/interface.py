"""What a ledger is to whoever writes to it or asks it, wherever it lies."""

from dataclasses import dataclass
from typing import Protocol

from shoal.keys import Key
from shoal.ledger.acts import Act
from shoal.ledger.state import Status


@dataclass(frozen=True, slots=True)
class Standing:
    """A node as its ledger has it."""

    stake: int
    leaving: int
    locked: int
    earned: int
    accepted: int
    offences: int
    leases: int
    status: Status


@dataclass(frozen=True, slots=True)
class Totals:
    """Where the credits are that are no node's."""

    clock: int
    batches: int
    treasury: int
    held: int
    brought_in: int
    paid_out: int


class Ledger(Protocol):
    """An append-only record under the rules of `rules.py`."""

    @property
    def run(self) -> str: ...

    def enter(self, key: Key, act: Act) -> bool:
        """Enters an act, signed with its author's key; False if it was there already. `Refused` says which rule it
        breaks. When it returns, the entry is durable."""
        ...

    def node(self, address: str) -> Standing | None:
        """None for an address that is not registered."""
        ...

    def judge(self, address: str) -> int | None:
        """A validator's standing, 0 .. 100; None for an address that is no validator."""
        ...

    def jury(self, batch: int) -> tuple[str, ...]:
        """Who was drawn to judge a batch."""
        ...

    def outcomes(self, batch: int) -> str:
        """A letter a submission (a, r, v, or x for one that does not count); empty while the batch is not settled."""
        ...

    def totals(self) -> Totals: ...

    def close(self) -> None: ...
