"""What people do with their own credits, and for a contract whose coordinator is gone.

A ledger in a file is spoken on through its coordinator. A contract needs nobody: with `run`, a directory that knows
which contract it is, the coordinator is not asked, and what it may have hidden in the log does not matter.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from shoal.errors import LedgerError
from shoal.keys import Key, checked_address
from shoal.ledger.acts import Act, Advance, Close, Deposit, Refund, Settle, Stake, Unbond, Withdraw
from shoal.ledger.chain import TamperedError
from shoal.ledger.interface import Standing, standing_of
from shoal.ledger.refusal import Refused
from shoal.ledger.state import State
from shoal.rundir import open_run
from shoal.shardcast.wire import distance_to
from shoal.swarm.client import Link
from shoal.swarm.history import ASK_S, OnChain, access
from shoal.swarm.known import PUBLIC, trusted
from shoal.swarm.member import is_own

if TYPE_CHECKING:
    from shoal.ledger.evm import EvmLedger


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who says something on a ledger, and how."""

    key: Key
    say: Callable[[Act], None]
    standing: Callable[[], Standing | None]
    contract: "EvmLedger | None" = None

    def has(self) -> Standing:
        found = self.standing()
        if found is None:
            raise LedgerError(f"{self.key.address}: has no account; an accepted file or a deposit opens one")
        return found


@contextmanager
def speaker(join: str, run: Path | None, key: Key) -> Iterator[Speaker]:
    """Through the run's coordinator, or straight to the contract that a directory names."""
    if run is not None:
        yield _on_chain(contract_in(run), key)
        return
    if not join:
        raise LedgerError("which ledger? give --join URL, or --run DIRECTORY where it is a contract")
    with Link(trusted(join), key, ASK_S) as link:
        through = access(link)
        if isinstance(through, OnChain):
            yield _on_chain(through.ledger, key)
        else:
            yield Speaker(key, through.say, lambda: standing_of(through.catch_up(), key.address))


def _on_chain(ledger: "EvmLedger", key: Key) -> Speaker:
    return Speaker(key, partial(ledger.send, key), lambda: ledger.node(key.address), ledger)


def contract_in(run: Path) -> "EvmLedger":
    """The contract of a run whose directory is here: its owner's, or the one of a machine that has joined it."""
    from shoal.ledger.deployed import OWN_RPC, chain_at, has_own_way, remembered
    from shoal.ledger.evm import EvmLedger
    from shoal.ledger.rpc import MOST_FEE

    config, known = open_run(run).config, remembered(run)
    wanted = known or config.ledger
    if not wanted.rpc or not wanted.contract:
        raise LedgerError(f"run {run}: its ledger is a file that its coordinator keeps; give --join URL")
    others = not is_own(run) and not has_own_way()
    if others and distance_to(wanted.rpc) < PUBLIC:
        raise LedgerError(
            f"run {run}: names a chain's node at {wanted.rpc}, inside this machine's own network, and it is not asked; "
            f"set {OWN_RPC} to a node of the chain"
        )
    chain = chain_at(wanted.rpc, None, config.ledger.confirmations, MOST_FEE if others else None)
    return EvmLedger(chain, wanted.contract, wanted.created, config.name)


def withdraw(join: str, run: Path | None, key: Key, console: Console) -> None:
    """Takes out what the key's address has earned for good, and what of its stake has left."""
    with speaker(join, run, key) as who:
        before = _held(who.has())
        who.say(Withdraw(id=_name()))
        console.print(f"{before - _held(who.has()):,} credits paid out to {key.address}", highlight=False)


def stake(join: str, run: Path | None, key: Key, amount: int | None, console: Console) -> None:
    """Stakes what was earned, all of it if no amount is given."""
    with speaker(join, run, key) as who:
        who.say(Stake(id=_name(), amount=who.has().earned if amount is None else amount))
        _show(who, console)


def unbond(join: str, run: Path | None, key: Key, amount: int | None, console: Console) -> None:
    """Has stake leave, all of it if no amount is given."""
    with speaker(join, run, key) as who:
        who.say(Unbond(id=_name(), amount=who.has().stake if amount is None else amount))
        _show(who, console)


def deposit(join: str, run: Path | None, key: Key, amount: int, node: str | None, console: Console) -> None:
    """Pays stake in for a node, the key's own if none is given. In a file, only the coordinator's key says so."""
    with speaker(join, run, key) as who:
        address = checked_address(node) if node else key.address
        who.say(Deposit(id=_name(), node=address, amount=amount))
        console.print(f"{amount:,} credits staked for {address}", highlight=False)


def refund(join: str, run: Path | None, key: Key, console: Console) -> None:
    """Takes out the key's share of what is left of the treasury, after the end."""
    with speaker(join, run, key) as who:
        who.say(Refund())
        console.print(f"refunded to {key.address}", highlight=False)


def advance(join: str, run: Path | None, key: Key, close: bool, console: Console) -> None:
    """What anybody may do for a contract whose coordinator is gone: settle what is overdue, move the clock a step that
    has stood still for long enough, and close it in the end. What is refused is said, and keeps nothing else back."""
    with speaker(join, run, key) as who:
        if (ledger := who.contract) is None:
            raise LedgerError("this ledger is a file, whose clock its coordinator alone moves")
        acts: list[Act] = [Advance(step=ledger.totals().clock + 1)]
        try:
            ledger.catch_up()
            acts[:0] = [Settle(batch=number) for number in ledger.look(_overdue)]
        except TamperedError as error:
            console.print(f"nothing is settled, for the log cannot be read: {error}", markup=False, soft_wrap=True)
        for act in [*acts, *([Close()] if close else [])]:
            try:
                who.say(act)
                console.print(f"{act.name}: entered", highlight=False)
            except Refused as error:
                console.print(str(error), markup=False, highlight=False, soft_wrap=True)


def _overdue(state: State) -> list[int]:
    late = state.clock - 2 * state.terms.patience
    return [b.number for b in state.batches if b.leaves and not b.outcomes and b.entered <= late]


def _held(standing: Standing) -> int:
    return standing.stake + standing.leaving + standing.locked + standing.earned


def _name() -> str:
    return secrets.token_hex(8)


def _show(who: Speaker, console: Console) -> None:
    now = who.has()
    text = f"stake {now.stake:,}, leaving {now.leaving:,}, earned {now.earned:,}, locked {now.locked:,}"
    console.print(text, highlight=False)
