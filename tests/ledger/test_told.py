"""What a coordinator tells its ledger, however often and with whatever interruptions, is entered once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import LedgerError
from shoal.ledger.export import verify_file
from shoal.ledger.store import SqliteLedger
from shoal.ledger.told import RunLedger, beacon_links

from .world import COORDINATOR, EVIDENCE, FILE, NODES, RUN, VALIDATORS, make_terms

Tell = Callable[[RunLedger], None]


def open_run(path: Path, **changes: Any) -> RunLedger:
    beacon = beacon_links(COORDINATOR, RUN)[0]
    terms = make_terms(**{"drawn": 1, "quorum": 1, "validators": (VALIDATORS[0].address,), "beacon": beacon, **changes})
    ledger = SqliteLedger.open(path / "ledger.db", COORDINATOR, RUN, terms)
    return RunLedger(ledger, COORDINATOR, VALIDATORS, path / "waiting.json")


def join(told: RunLedger) -> None:
    for node in NODES:
        told.register(node.address, "worker", 1.0)
    told.register(VALIDATORS[0].address, "validator", 1.0)


def submit(told: RunLedger) -> None:
    for i in range(3):
        told.submitted(NODES[i].address, 1, i, FILE, 2, tokens=100)


def judge(told: RunLedger) -> None:
    who = VALIDATORS[0].address
    told.verdict(NODES[0].address, 1, 0, True, "", who)
    told.verdict(NODES[1].address, 1, 1, False, "computation: ...", who, evidence=EVIDENCE)


def judge_rest(told: RunLedger) -> None:
    told.verdict(NODES[2].address, 1, 2, False, "version: too late", VALIDATORS[0].address)


STORY: list[Tell] = [join, submit, judge, judge_rest]


def check(told: RunLedger) -> None:
    state = told.ledger.state
    assert [batch.outcomes for batch in state.batches if batch.leaves] == ["arv"]
    assert [state.accounts[node.address].offences for node in NODES] == [0, 1, 0]


@pytest.mark.parametrize("drawn", [1, 3])
def test_submissions_and_verdicts_become_batches_and_votes(tmp_path: Path, drawn: int) -> None:
    everybody = tuple(key.address for key in VALIDATORS)
    terms = {} if drawn == 1 else {"drawn": 3, "quorum": 2, "validators": everybody}
    told = open_run(tmp_path, **terms)
    for part in STORY:
        part(told)
        told.flush()
    check(told)
    told.ledger.close()
    verify_file(tmp_path / "ledger.db", COORDINATOR.address)


@pytest.mark.parametrize("killed_after", range(len(STORY)))
def test_what_is_told_again_after_a_kill_is_entered_once(tmp_path: Path, killed_after: int) -> None:
    """A kill after entering and before the outbox was cleared: the last part is told again."""
    for number, part in enumerate(STORY):
        told = open_run(tmp_path)
        part(told)
        told.flush()
        told.ledger.close()
        if number == killed_after:
            told = open_run(tmp_path)
            part(told)
            told.flush()
            told.ledger.close()
    told = open_run(tmp_path)
    check(told)
    told.ledger.close()


def test_what_nobody_judges_is_void_after_a_while(tmp_path: Path) -> None:
    told = open_run(tmp_path)
    for part in (join, submit, judge):
        part(told)
        told.flush()
    told.advance(3)
    told.flush()
    check(told)
    told.ledger.close()


def test_another_key_cannot_go_on_with_the_beacons(tmp_path: Path) -> None:
    ledger = SqliteLedger.open(tmp_path / "ledger.db", COORDINATOR, RUN, make_terms())
    with pytest.raises(LedgerError, match="beacons"):
        RunLedger(ledger, COORDINATOR, VALIDATORS, tmp_path / "waiting.json")
    ledger.close()
