"""The ledger as a contract on any EVM chain: the contract enforces the rules, the sender of a transaction is the
author.

The chain orders entries and keeps them, so there are no seals and no heads here. The contract logs every act, and the
same fold as the embedded ledger's makes the state out of the logs: `look` reads that, and asks nobody. What `node`,
`totals` and the like give is the contract's own; `check` compares the two.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Self, TypeVar, get_args

from eth_typing import HexStr
from web3.types import TxParams, Wei

from shoal.crypto.keys import Key, checksummed
from shoal.errors import LedgerError
from shoal.ledger.acts import Act, Advance, Commit, Leaf, Reveal, Terms, Work
from shoal.ledger.entry import Statement
from shoal.ledger.evm.calls import as_logged, call_of, packed
from shoal.ledger.evm.contract import compiled
from shoal.ledger.evm.creation import creation_input, read_creation
from shoal.ledger.evm.log import Log
from shoal.ledger.evm.rpc import Chain, Reverted, Sent
from shoal.ledger.interface import Line, Standing, Totals, standing_of, totals_of
from shoal.ledger.refusal import Code, Refused
from shoal.ledger.state import State, Status

STATUSES: tuple[Status, ...] = ("active", "suspended", "banned")
T = TypeVar("T")


class EvmLedger:
    """A ledger on a chain, through one of its nodes. It is asked for nothing before `catch_up`, which first looks at
    the transaction that created the contract."""

    def __init__(self, chain: Chain, address: str, created: str, run: str) -> None:
        self.chain, self.address, self.created, self._run = chain, address, created, run
        self._contract = chain.web3.eth.contract(address=chain.web3.to_checksum_address(address), abi=compiled().abi)
        self._busy = threading.RLock()  # who talks to the chain
        self._log = Log(chain, self._contract, created, run)
        self._given: dict[str, int] = {}
        self.spent_s = 0.0
        """Seconds that entering took."""
        self.last: Sent | None = None

    @classmethod
    def deploy(cls, chain: Chain, key: Key, run: str, terms: Terms) -> Self:
        """A new contract; its coordinator is who deploys it."""
        data: TxParams = {"data": creation_input(run, terms)}
        try:
            sent = chain.send(key, "the contract", data)
        except Reverted as error:
            raise Refused(_code_of(error.code), f"open: the contract refuses the terms ({error.code})") from None
        receipt = chain.ask("the contract", lambda: chain.web3.eth.get_transaction_receipt(sent.hash))  # type: ignore[arg-type]
        address = receipt["contractAddress"]
        if address is None:
            raise LedgerError(f"chain {chain.url}: made no contract of transaction {sent.hash}")
        return cls.at(chain, address.lower(), sent.hash, run)

    @classmethod
    def at(cls, chain: Chain, address: str, created: str, run: str) -> Self:
        """The ledger of a run that is there already; LedgerError unless the transaction `created` made it as we do."""
        ledger = cls(chain, address.lower(), created, run)
        ledger.catch_up()
        return ledger

    @property
    def run(self) -> str:
        return self._run

    @property
    def place(self) -> str:
        return f"contract {checksummed(self.address)} at {self.chain.url}"

    def enter(self, key: Key, act: Act) -> bool:
        return self.enter_all(key, [act])[0]

    def enter_all(self, key: Key, acts: Sequence[Act]) -> list[bool]:
        if not acts:
            return []
        with self._busy:
            began = time.monotonic()
            try:
                self.catch_up()
                found, refused = list[bool](), list[Refused]()
                for act in acts:
                    try:
                        found.append(self._enter(key, act))
                    except Refused as error:
                        refused.append(error)
                if any(found):
                    self.catch_up()
                if refused:
                    raise refused[0]
                return found
            finally:
                self.spent_s += time.monotonic() - began

    def _enter(self, key: Key, act: Act) -> bool:
        if (known := self._known(key.address, act)) is not None:
            return known
        try:
            self._send(key, act)
        except Reverted as error:
            self.catch_up()  # it may have been entered meanwhile, or by a process that did not live to say so
            if (known := self._known(key.address, act)) is not None:
                return known
            raise _refused(act, error) from None
        return True

    def send(self, key: Key, act: Act) -> None:
        """Enters an act without reading the log: whatever is hidden there, its author's money stays in reach."""
        read_creation(self.chain, self.created, self.address, self._run)
        try:
            self._send(key, act)
        except Reverted as error:
            raise _refused(act, error) from None

    def _send(self, key: Key, act: Act) -> None:
        function, arguments, value = call_of(act, lambda batch: self._leaves(batch, act.name), self._step)
        data = self._contract.encode_abi(function, arguments)
        if isinstance(act, Work):
            data = HexStr(f"{data}{packed(act.leaves).hex()}")
        transaction: TxParams = {"to": self._contract.address, "data": data, "value": Wei(value)}
        self.last = self.chain.send(key, act.name, transaction)

    def _known(self, author: str, act: Act) -> bool | None:
        """False if this very act was entered; None if none of its name was; Refused if another was."""
        meant = as_logged(author, act)
        found = self._log.entered(author, meant.name)
        if found is not None and found != meant:
            raise Refused("taken", f"{act.name}: {author} has entered another of that name")
        return None if found is None else False

    def _leaves(self, batch: int, name: str) -> Sequence[Leaf]:
        known = self.look(lambda state: state.batches[batch].leaves if batch < len(state.batches) else None)
        if known is None:
            raise Refused("unknown", f"{name}: there is no batch {batch}")
        return known

    def _step(self, batch: int) -> int:
        return self.look(lambda state: state.batches[batch].step)

    def take(self, statement: Statement) -> bool:
        raise Refused("pointless", f"{statement.act.name}: this run's ledger is {self.place}; send a transaction there")

    def stored_lines(self, first: int, max_bytes: int) -> list[str]:  # noqa: ARG002
        raise Refused("pointless", f"entries: this run's ledger is {self.place}; read it there")

    # What others entered

    def catch_up(self) -> None:
        """Sends again what the chain has lost of ours, and reads what is new."""
        with self._busy:
            self.chain.tend()
            self._log.catch_up()

    def look(self, reader: Callable[[State], T]) -> T:
        return self._log.look(reader)

    def lines(self) -> Sequence[Line]:
        return self._log.lines()

    def time_of(self, line: Line) -> int:
        """Milliseconds since 1970."""
        return self._log.time_of(line)

    def moved_at(self) -> int:
        """When the clock was moved last, or the contract was created: seconds since 1970."""
        step, moved = 0, None
        for line in self.lines():
            if isinstance(line.act, Work | Advance) and line.act.step > step:
                step, moved = line.act.step, line
        return self.time_of(moved) // 1000 if moved else self.chain.time_of(self.created)

    def check(self) -> None:
        """LedgerError unless the contract has what the rules make of its log: every balance, jury and outcome."""
        self.catch_up()
        state = self.look(lambda state: state)
        for address in state.accounts:
            _must_equal(f"node {address}", self.node(address), standing_of(state, address))
        for address, judge in state.judges.items():
            _must_equal(f"validator {address}", self.judge(address), judge.standing)
        for batch in state.batches:
            _must_equal(f"jury of batch {batch.number}", self.jury(batch.number), batch.jury)
            _must_equal(f"outcomes of batch {batch.number}", self.outcomes(batch.number), batch.outcomes)
        _must_equal("totals", self.totals(), totals_of(state))
        wei = self.chain.balance(self.address)
        if wei < state.total():
            raise LedgerError(f"{self.place}: holds {wei} wei and owes {state.total()}")

    # The contract's own words

    def node(self, address: str) -> Standing | None:
        registered, *amounts, status = self._log.ask(self._contract.functions.node(checksummed(address)))
        numbers: tuple[int, int, int, int, int, int, int, int] = tuple(amounts)
        return Standing(*numbers, STATUSES[status]) if registered else None

    def judge(self, address: str) -> int | None:
        is_judge, standing = self._log.ask(self._contract.functions.judge(checksummed(address)))
        return int(standing) if is_judge else None

    def jury(self, batch: int) -> tuple[str, ...]:
        return tuple(address.lower() for address in self._log.ask(self._contract.functions.jury(batch)))

    def outcomes(self, batch: int) -> str:
        settled, count, accepted, rejected, excluded = self._log.ask(self._contract.functions.outcomes(batch))
        if not settled:
            return ""
        kinds = (("a", accepted), ("r", rejected), ("x", excluded))
        return "".join(next((kind for kind, mask in kinds if mask >> i & 1), "v") for i in range(count))

    def totals(self) -> Totals:
        return Totals(*self._log.ask(self._contract.functions.totals()))

    def give_gas(self, key: Key, wei: int) -> None:
        """Fills up what is less than half of it; after the first time, only for a validator that has voted since."""
        if not wei:
            return
        with self._busy:
            for address in self.look(lambda state: list(state.judges)):
                votes = sum(line.author == address and isinstance(line.act, Commit | Reveal) for line in self.lines())
                if address != key.address and self._given.get(address, -1) < votes:
                    has = self.chain.balance(address)
                    if has < wei // 2:
                        self.chain.pay(key, address, wei - has)
                    self._given[address] = votes

    def stop(self) -> None:
        self.chain.stop()

    def close(self) -> None:
        self.chain.stop()


def _must_equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise LedgerError(f"{what}: the contract has {_shown(found)}, by the rules it is {_shown(expected)}")


def _shown(value: object) -> object:
    return asdict(value) if isinstance(value, Standing | Totals) else value


def _refused(act: Act, error: Reverted) -> Refused:
    return Refused(_code_of(error.code), f"{act.name}: the contract refuses it ({error.code or 'it reverted'})")


def _code_of(code: str) -> Code:
    return code if code in get_args(Code) else "not-allowed"  # type: ignore[return-value]
