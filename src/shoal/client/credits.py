"""Commands on a node's own credits (stake, unbond, withdraw), and those that anybody may give when a coordinator is
gone.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError
from rich.console import Console

from shoal.client.ledger import Access, OnChain
from shoal.client.ledger_access import Where, reach_ledger
from shoal.crypto.keys import Key, checked_address, checksummed
from shoal.errors import HiddenError, LedgerError, RolloutError
from shoal.ledger.acts import Act, Advance, Close, Deposit, Refund, Settle, Stake, Unbond, Withdraw
from shoal.ledger.balance_report import outlook, unit
from shoal.ledger.court import is_due
from shoal.ledger.refusal import Refused
from shoal.ledger.rules import apply
from shoal.ledger.state import State
from shoal.protocol.refusal import Refusal

if TYPE_CHECKING:
    from shoal.ledger.evm.ledger import EvmLedger

A = TypeVar("A", bound=Act)


@contextmanager
def teller(where: Where, key: Key, console: Console) -> Iterator["Teller"]:
    with reach_ledger(where, key) as ledger:
        yield Teller(ledger, key, console)


class Teller:
    """One person's hand on a ledger: enters acts, and says afterwards how its address stands, also after a refusal."""

    def __init__(self, ledger: Access, key: Key, console: Console) -> None:
        self._ledger, self._key, self._console = ledger, key, console

    def stake(self, amount: int) -> None:
        """Pays in what was earned."""
        self._enter(lambda state: Stake(id=self._next(state, "stake"), amount=amount))
        self._done(f"staked {amount:,} {{unit}}")

    def deposit(self, amount: int, node: str | None) -> None:
        """Pays in coin; into a file, only the coordinator says what was paid."""
        who = checked_address(node) if node else self._key.address
        state = self._ledger.catch_up()
        if not state.on_chain and self._key.address != state.coordinator:
            raise LedgerError(
                f"deposit {amount}: this ledger is a file, in which only the coordinator "
                f"{checksummed(state.coordinator)} says what was paid in. Pay the run's owner, who then runs: shoal "
                f"ledger deposit {amount} --node {checksummed(who)} --join URL --key RUN/keys/coordinator.key"
            )
        self._enter(lambda state: Deposit(id=self._next(state, "deposit"), node=who, amount=amount))
        self._done(f"deposited {amount:,} {{unit}} as stake of {checksummed(who)}", who)

    def unbond(self, amount: int | None) -> None:
        """Lets stake leave, all of it if no amount is given."""

        def act(state: State) -> Unbond:
            account = state.accounts.get(self._key.address)
            has = account.stake if account else 0
            if not has:
                raise LedgerError(f"unbond: {checksummed(self._key.address)} has no stake to release")
            return Unbond(id=self._next(state, "unbond"), amount=amount or has)

        try:
            entered = self._enter(act)
        except HiddenError as hidden:
            self._enter_unread(hidden, lambda ledger: Unbond(id=_fresh(), amount=amount or self._stake(ledger)))
            return
        self._done(f"unbonded {entered.amount:,} {{unit}}")

    def withdraw(self) -> None:
        """Takes out what is earned for good, and what of the stake has left."""
        try:
            before = self._paid(self._ledger.catch_up())
        except HiddenError as hidden:
            self._enter_unread(hidden, lambda _: Withdraw(id=_fresh()))
            return
        self._enter(lambda state: Withdraw(id=self._next(state, "withdraw")))
        state = self._ledger.catch_up()
        by = "" if state.on_chain else ", by the run's owner"
        self._done(f"{self._paid(state) - before:,} {{unit}} paid out to {checksummed(self._key.address)}{by}")

    def advance(self) -> None:
        """Moves the clock of a contract on by a step, and settles what waits for nobody any more."""
        try:
            self._settle()
        except HiddenError as hidden:
            self._enter_unread(hidden, lambda ledger: Advance(step=ledger.totals().clock + 1))
            return
        entered = self._enter(lambda state: Advance(step=state.clock + 1))
        self._settle()
        self._done(f"moved the clock to step {entered.step}")

    def close(self) -> None:
        """Ends a ledger: no more files are entered."""
        self._enter(lambda _: Close())
        self._done("closed the ledger")

    def refund(self) -> None:
        """Takes out a funder's share of the treasury, once the ledger is over."""
        before = self._ledger.catch_up().paid_out
        self._enter(lambda _: Refund())
        self._done(f"{self._ledger.catch_up().paid_out - before:,} {{unit}} of the treasury refunded")

    def _settle(self) -> None:
        state = self._ledger.catch_up()
        if not state.on_chain:
            return
        for number in [batch.number for batch in state.batches if is_due(state, batch)]:
            try:
                self._ledger.say(Settle(batch=number))
            except Refused:  # the coordinator still has time to open its plants, or somebody else was faster
                continue
            self._console.print(f"settled batch {number}", highlight=False)

    def _enter(self, make: Callable[[State], A]) -> A:
        state = self._ledger.catch_up()
        try:
            act = make(state)
        except ValidationError as error:
            raise LedgerError(f"amount: {error.errors()[0]['msg']}; no ledger holds so much") from None
        try:
            self._ledger.say(act)
        except (Refused, Refusal, RolloutError) as refused:
            self._show(state, self._key.address)
            if not isinstance(refused, Refused):  # the coordinator's own words
                raise
            if isinstance(act, Advance) and refused.code == "early":
                raise Refused(
                    "early",
                    f"{act.name}: anyone may advance the clock once it has stood still for {state.terms.stall:,} s; "
                    f"try again in {self._ledger.advance_in_s(state):,} s",
                ) from None
            apply(deepcopy(state), self._key.address, act)  # a contract gives a word, the same rule here a sentence
            raise
        return act

    def _enter_unread(self, hidden: HiddenError, make: Callable[["EvmLedger"], Act]) -> None:
        """What is a node's own stays within its reach where a coordinator has entered what nobody can read."""
        if not isinstance(self._ledger, OnChain):
            raise hidden
        self._console.print(f"{hidden}. The contract is asked instead of its history.", highlight=False, soft_wrap=True)
        act = self._ledger.say_unread(make)
        found = self._ledger.ledger.node(self._key.address)
        self._console.print(f"entered: {act.name}; the contract has {found or 'no account of yours'}", highlight=False)

    def _stake(self, ledger: "EvmLedger") -> int:
        found = ledger.node(self._key.address)
        return found.stake if found else 0

    def _next(self, state: State, kind: str) -> str:
        """An id that stays the same until the act is entered: given twice by a person in doubt, it happens once."""
        return f"{sum(who == self._key.address and name.startswith(f'{kind} ') for who, name in state.entered)}"

    def _paid(self, state: State) -> int:
        account = state.accounts.get(self._key.address)
        return account.paid if account else 0

    def _done(self, said: str, who: str | None = None) -> None:
        state = self._ledger.catch_up()
        self._console.print(said.format(unit=unit(state)), highlight=False, soft_wrap=True)
        self._show(state, who or self._key.address)

    def _show(self, state: State, who: str) -> None:
        for line in outlook(state, who, self._ledger.advance_in_s(state)):
            self._console.print(line, highlight=False, soft_wrap=True)


def _fresh() -> str:
    return secrets.token_hex(8)
