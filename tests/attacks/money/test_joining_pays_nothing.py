"""Keys are free, so a key alone must be worth nothing: not to its holder, and not in the owner's purse."""

from pathlib import Path

from shoal.ledger.acts import Register, Stake, Unbond, Withdraw
from tests.support.ledgers import KEYS, NODES, STRANGER, Court, key_of, leaf, refusal, sqlite_ledger


def test_a_key_that_did_nothing_takes_nothing_out(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    Court(ledger).begin()
    for number in range(100, 110):
        key = key_of(number)
        for act in (Unbond(id="x", amount=80), Withdraw(id="x"), Stake(id="x", amount=1)):
            assert refusal(ledger, key, act) == "unknown"
        assert refusal(ledger, key, Register(node=key.address)) == "not-allowed"
    assert set(ledger.state.accounts) <= set(KEYS)
    ledger.close()


def test_rubbish_opens_no_account_and_welcome_credits_are_never_paid_out(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    court = Court(ledger)
    court.begin()
    court.judged([leaf(n, key_of(100 + n)) for n in range(20)], "r" * 20)
    assert not any(key_of(100 + n).address in ledger.state.accounts for n in range(20))
    court.judged([leaf(30, STRANGER, tokens=0)], "a")
    assert court.node(STRANGER.address).gift == 80
    assert refusal(ledger, STRANGER, Unbond(id="x", amount=80)) == "short"
    court.pass_steps(20)
    assert refusal(ledger, STRANGER, Withdraw(id="x")) == "short"
    assert (court.node(STRANGER.address).leases, ledger.totals().paid_out) == (1, 0)
    ledger.close()


def test_a_record_alone_gives_no_second_lease(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    court = Court(ledger)
    court.begin()
    court.judged([leaf(n, NODES[1]) for n in range(50)], "a" * 50)
    assert court.node(NODES[1].address).leases == 1
    ledger.close()
