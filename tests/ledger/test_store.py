"""The embedded ledger survives what kills it, and many writers share it."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.errors import LedgerError, StorageError
from shoal.ledger.acts import Fund, Withdraw
from shoal.ledger.entry import Statement
from shoal.ledger.export import verify_file
from tests.support.ledgers import COORDINATOR, NODES, RUN, STRANGER, Court, leaf, refusal, sqlite_ledger
from tests.support.small_disk import run_on_small_disk


def test_a_hundred_kills_tear_no_entry_and_lose_none_that_was_acknowledged(tmp_path: Path) -> None:
    script = Path(__file__).with_name("crashing.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "100"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == 100
    assert result["acknowledged"] > 100


def test_what_was_entered_is_there_after_a_restart(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    court = Court(ledger)
    court.begin()
    court.judged([leaf(0), leaf(1, NODES[1])], "ar")
    state = ledger.state
    ledger.close()
    again = sqlite_ledger(tmp_path)
    assert again.state == state
    assert not again.enter(COORDINATOR, Fund(id="budget", amount=100_000))
    assert refusal(again, COORDINATOR, Fund(id="budget", amount=1)) == "taken"
    again.close()


def test_a_second_writer_is_refused_while_there_is_a_first(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    with pytest.raises(StorageError, match="another process writes to it"):
        sqlite_ledger(tmp_path)
    ledger.close()
    sqlite_ledger(tmp_path).close()


def test_only_the_coordinator_says_what_was_paid_in(tmp_path: Path) -> None:
    """On a chain the money itself says so."""
    ledger = sqlite_ledger(tmp_path)
    assert refusal(ledger, STRANGER, Fund(id="mine", amount=5)) == "not-allowed"
    ledger.close()


def test_many_writers_at_once_make_one_history(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    acts = [Fund(id=str(i // 2), amount=1) for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(lambda act: ledger.enter(COORDINATOR, act), acts))
    ledger.close()
    assert sum(new) == 100
    assert verify_file(tmp_path / "ledger.db").state.treasury == 100


def test_what_was_signed_for_another_ledger_or_by_another_key_is_not_entered(tmp_path: Path) -> None:
    one, other = sqlite_ledger(tmp_path / "one"), sqlite_ledger(tmp_path / "other", rate=1)
    said = Statement.sign(STRANGER, RUN, other.name, Withdraw(id="x"))
    with pytest.raises(LedgerError, match="was signed for ledger"):
        one.take(said)
    forged = Statement.sign(STRANGER, RUN, one.name, Fund(id="x", amount=1))
    with pytest.raises(LedgerError, match="signed by 0x"):
        one.take(forged.model_copy(update={"author": COORDINATOR.address}))
    assert one.head.number == 0
    one.close()
    other.close()


def test_a_full_disk_refuses_loses_nothing_and_goes_on_after_it_is_opened_again(tmp_path: Path) -> None:
    code = """
import sys, os
from pathlib import Path
from shoal.errors import StorageError
from shoal.crypto.keys import Key
from shoal.ledger.acts import NO_HASH, Fund, Terms
from shoal.ledger.export import verify_file
from shoal.ledger.store import SqliteLedger

key, path = Key(bytes([1]) * 32), Path(sys.argv[1]) / "ledger.db"
terms = Terms(arbiter=key.address, validators=(key.address,), beacon=NO_HASH)
ledger, done = SqliteLedger.open(path, key, "r", terms), 0
ballast = path.with_name("ballast")
ballast.write_bytes(bytes(1 << 18))
try:
    while done < 10_000:
        ledger.enter(key, Fund(id=str(done), amount=1))
        done += 1
except StorageError as error:
    print("disk is full" in str(error))
ledger.close()
ballast.unlink()
ledger = SqliteLedger.open(path, key, "r", terms)
print(0 < done <= ledger.state.treasury <= done + 1, ledger.enter(key, Fund(id="more", amount=1)))
ledger.close()
"""
    assert run_on_small_disk(tmp_path / "disk", 1024, code).split() == ["True", "True", "True"]
