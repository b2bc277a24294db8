"""The contract's event log as the full history: read, checked and folded by the same rules as a file's entries.

A chain may change its mind and a node may leave something out. What was read is believed as long as its last block is
still there; from where it is not, it is read again.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hexbytes import HexBytes
from web3.contract import Contract
from web3.contract.contract import ContractFunction
from web3.exceptions import TransactionNotFound

from shoal.errors import LedgerError
from shoal.ledger.acts import Act, Leaf, Open
from shoal.ledger.chain import TamperedError
from shoal.ledger.evm.calls import act_of, unpacked
from shoal.ledger.evm.creation import read_creation
from shoal.ledger.evm.rpc import Chain, ChainError
from shoal.ledger.interface import Line
from shoal.ledger.rules import apply, opened
from shoal.ledger.state import State

RANGE = 2000
"""Blocks whose logs are asked for at once: nodes that serve many give no more."""
T = TypeVar("T")
Place = tuple[int, str]
"""A block: its number and its hash."""


@dataclass(slots=True)
class Read:
    """What was read of the contract's log so far, and what it adds up to."""

    state: State
    next: int
    """The block from which on it is not read yet."""
    head: Place | None = None
    """The last block that was read."""
    last: Place | None = None
    """The last block that had an act."""
    lines: list[Line] = field(default_factory=list)
    acts: dict[tuple[str, str], Act] = field(default_factory=dict)


class Log:
    """The log of a contract that is a run's ledger. One thread at a time catches up with it; any may look."""

    def __init__(self, chain: Chain, contract: Contract, created: str, run: str) -> None:
        self.chain, self._contract, self._created, self._run = chain, contract, created, run
        self._times: dict[int, int] = {}
        self._lock = threading.Lock()
        self._read: Read | None = None

    def catch_up(self) -> None:
        """Reads what is new; all of it again where the chain has changed its mind, or something is missing."""
        read = self._read
        newest = self.chain.ask("the newest block", lambda: self.chain.web3.eth.get_block("latest"))
        head = (int(newest["number"]), bytes(newest["hash"]).hex())
        if read is not None and read.head == head:
            return
        if read is not None and not (read.head and self.chain.has_block(*read.head)):
            read = self._without_what_is_gone(read)
        if read is not None:
            try:
                self._extend(read, head)
                return
            except TamperedError:
                pass  # a node that was behind left something out
        fresh = self._begin()
        self._extend(fresh, head)
        with self._lock:
            self._read = fresh

    def _without_what_is_gone(self, read: Read) -> Read | None:
        """The same up to the last act, if the chain still has that."""
        if read.last is None or not self.chain.has_block(*read.last):
            return None
        read.next = read.last[0] + 1
        return read

    def _begin(self) -> Read:
        """Nothing of a contract whose creation is ours, and of this run."""
        found = read_creation(self.chain, self._created, self._contract.address.lower(), self._run)
        state = opened(self._run, found.coordinator, Open(terms=found.terms), on_chain=True)
        return Read(state, found.block)

    def _extend(self, read: Read, head: Place) -> None:
        while read.next <= head[0]:
            last = min(read.next + RANGE - 1, head[0])
            for log in self._logs(read.next, last):
                self._take(read, log)
            read.next = last + 1
        read.head = head

    def _logs(self, first: int, last: int) -> list[Any]:
        event = self._contract.events.Entered()
        found = self.chain.ask("what was entered", lambda: event.get_logs(from_block=first, to_block=last))
        return sorted(found, key=lambda log: (log["blockNumber"], log["logIndex"]))

    def _take(self, read: Read, log: Any) -> None:
        logged, number, digest = log["args"], len(read.lines), bytes(log["transactionHash"])
        author, state = logged["author"].lower(), read.state
        try:
            act = act_of(
                author,
                logged,
                lambda batch: len(state.batches[batch].leaves),
                lambda _: self._handed_in(digest, logged),
            )
            with self._lock:
                apply(state, author, act)
        except ChainError:
            raise
        except (LedgerError, IndexError) as error:
            raise TamperedError(
                number, f"of block {log['blockNumber']}, transaction 0x{digest.hex()}: {error}"
            ) from None
        place = (int(log["blockNumber"]), bytes(log["blockHash"]).hex())
        read.last = place
        read.lines.append(Line(number, author, act, f"0x{digest.hex()}", place[0]))
        read.acts[author, act.name] = act

    def _handed_in(self, digest: bytes, logged: Any) -> Sequence[Leaf]:
        """The submissions of a batch, out of the transaction that entered it."""
        try:
            found = self.chain.ask("a transaction", lambda: self.chain.web3.eth.get_transaction(HexBytes(digest)))
        except TransactionNotFound:
            raise ChainError(
                f"chain {self.chain.url}: has the log of a transaction but not the transaction; asked again"
            ) from None
        if found.get("to") != self._contract.address:
            raise LedgerError("the coordinator enters work with transactions of its own, not through another contract")
        data = bytes(found["input"])
        _, called = self._contract.decode_function_input(found["input"])
        return unpacked(data, int(logged["one"]), bytes(called["root"]), int(called["count"]))

    def look(self, reader: Callable[[State], T]) -> T:
        """Reads the state as it was when it was caught up with last; the chain may be away."""
        with self._lock:
            if self._read is None:
                raise LedgerError(
                    f"chain {self.chain.url}: contract {self._contract.address} was not read yet; is its node up?"
                )
            return reader(self._read.state)

    def lines(self) -> Sequence[Line]:
        return self._read.lines if self._read else ()

    def time_of(self, line: Line) -> int:
        if line.at not in self._times:
            block = self.chain.ask("a block", lambda: self.chain.web3.eth.get_block(line.at))
            self._times[line.at] = 1000 * int(block["timestamp"])
        return self._times[line.at]

    def entered(self, author: str, name: str) -> Act | None:
        """An author's act of this name."""
        return self._read.acts.get((author, name)) if self._read else None

    def ask(self, function: ContractFunction) -> Any:
        """What the contract itself says."""
        return self.chain.ask(function.fn_name, function.call)
