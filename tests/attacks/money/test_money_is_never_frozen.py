"""A coordinator that stops keeps nobody's money: anybody moves a clock that stands still."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from shoal.client.credits import Teller
from shoal.client.ledger import OnChain
from shoal.ledger.acts import Advance, Close, Fund, Refund, Settle, Unbond, Withdraw
from shoal.ledger.chain import TamperedError
from shoal.ledger.evm.ledger import EvmLedger
from tests.conftest import chain_or_skip
from tests.support.ledgers import (
    COORDINATOR,
    KEYS,
    NODES,
    RUN,
    STRANGER,
    VALIDATORS,
    Court,
    evm_ledger,
    leaf,
    refusal,
    sqlite_ledger,
)
from tests.support.servers.anvil import Anvil

STALL_S = 3600


@pytest.fixture(scope="module")
def chain() -> Iterator[Anvil]:
    with chain_or_skip() as chain:
        for address in KEYS:
            chain.enrich(address)
        yield chain


def advance(chain: Anvil, ledger: EvmLedger, steps: int) -> None:
    for _ in range(steps):
        chain.ask("evm_increaseTime", STALL_S)
        chain.ask("evm_mine")
        assert ledger.enter(STRANGER, Advance(step=ledger.totals().clock + 1))


def test_a_coordinator_that_stops_keeps_nobodys_stake_or_pay(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path, judge_pay=7)
    court = Court(ledger)
    court.begin()
    ledger.enter(STRANGER, Fund(id="gift", amount=300_000))
    court.judged([leaf(0)], "a")
    left = court.work(leaf(1, NODES[2]), leaf(2, NODES[1]), plants="r.")  # the coordinator is never heard of again
    ledger.enter(NODES[0], Unbond(id="out", amount=1000))
    assert refusal(ledger, STRANGER, Advance(step=1)) == "early"
    court.vote(left, "ra")
    advance(chain, ledger, 1)
    assert refusal(ledger, STRANGER, Advance(step=2)) == "early"  # a step at a time: nobody's right to object is cut
    assert refusal(ledger, STRANGER, Advance(step=3)) == "order"
    advance(chain, ledger, 1)
    assert ledger.enter(NODES[1], Settle(batch=left))
    assert refusal(ledger, STRANGER, Close()) == "not-allowed"
    advance(chain, ledger, 4)
    for node in NODES[:2]:
        assert ledger.enter(node, Withdraw(id="all"))
    assert ledger.totals().paid_out == 1000 + 20 + 20
    assert ledger.enter(STRANGER, Close())
    assert refusal(ledger, STRANGER, Refund()) == "early"
    advance(chain, ledger, 6)
    for validator in VALIDATORS:
        assert ledger.enter(validator, Withdraw(id="judged"))
    before = ledger.totals()
    assert ledger.enter(STRANGER, Refund())
    share = (before.treasury - 50) * 3 // 4  # it brought in three of four; what a reject took goes to nobody
    assert ledger.totals().paid_out - before.paid_out == share
    ledger.check()


def test_the_owner_cannot_take_the_treasury_from_under_accepted_work(chain: Anvil, tmp_path: Path) -> None:
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin()
    batch = court.work(leaf(0))
    court.vote(batch, "a")
    assert refusal(ledger, COORDINATOR, Refund()) == "early"
    ledger.enter(COORDINATOR, Close())
    court.pass_steps(20)
    assert refusal(ledger, COORDINATOR, Refund()) == "early"
    ledger.enter(NODES[0], Settle(batch=batch))
    assert refusal(ledger, COORDINATOR, Refund()) == "early"
    assert court.node(NODES[0].address).locked == 20


def test_a_files_clock_is_its_coordinators(tmp_path: Path) -> None:
    """There is no time in a file that anybody could believe."""
    ledger = sqlite_ledger(tmp_path)
    assert refusal(ledger, STRANGER, Advance(step=1)) == "not-allowed"
    ledger.close()


def test_gas_is_given_for_votes_and_for_nothing_else(chain: Anvil, tmp_path: Path) -> None:
    """A validator that funds the treasury with nothing, and sends its gas elsewhere, is not filled up again."""
    ledger = evm_ledger(chain, tmp_path)
    who, gas = VALIDATORS[0], 10**17
    chain.ask("anvil_setBalance", who.address, "0x0")
    ledger.give_gas(COORDINATOR, gas)
    for n in range(3):
        ledger.enter(who, Fund(id=str(n), amount=0))
        chain.ask("anvil_setBalance", who.address, "0x0")
        ledger.give_gas(COORDINATOR, gas)
        assert ledger.chain.balance(who.address) == 0
        chain.ask("anvil_setBalance", who.address, hex(gas))


def test_files_that_a_coordinator_enters_and_hides_keep_nobody_from_its_stake(
    chain: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = evm_ledger(chain, tmp_path)
    court = Court(ledger)
    court.begin()
    with monkeypatch.context() as patch:
        patch.setattr("shoal.ledger.evm.ledger.packed", lambda _leaves: b"")
        with pytest.raises(TamperedError):
            court.work(leaf(0, NODES[1]))
    read = EvmLedger(ledger.chain, ledger.address, ledger.created, RUN)
    console = Console(record=True, width=200)
    node, other = (Teller(OnChain(read, key), key, console) for key in (NODES[0], STRANGER))
    node.unbond(None)
    for _ in range(ledger.look(lambda state: state.leaving_steps)):
        chain.ask("evm_increaseTime", STALL_S)
        chain.ask("evm_mine")
        other.advance()
    node.withdraw()
    found = ledger.node(NODES[0].address)
    assert found is not None
    assert (found.stake, found.leaving) == (0, 0)
    assert ledger.totals().paid_out == 1000
    assert "the chain's node or the coordinator leaves something out" in console.export_text()
