"""Pages of a run whose ledger is a contract: they call no chain, say where the ledger is, and claim nothing of it."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine

from shoal.coordinator import rates_table
from shoal.coordinator.archive import HOME, STATE
from shoal.ledger.contract_file import CONTRACT_FILE, Deployed
from shoal.rundir import RUN_FILE
from tests.support.axe import axe_faults
from tests.support.browser import Browser, opened
from tests.support.coordinator_in_process import COORDINATOR, make_config
from tests.support.large_run import address, write_large_run
from tests.support.page_in_process import serving_pages
from tests.watch.conftest import put_status

CONTRACT = Deployed(
    run="test", chain=31337, contract=f"0x{'c' * 40}", created=f"0x{'d' * 64}", rpc="http://203.0.113.77:8545/secret"
)


def document(url: str, name: str) -> Any:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        answer = client.get(f"{url}/data/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def coordinator_started(run: Path) -> None:
    """What the coordinator of a run without a ledger file leaves: its table of honest rates, which it has signed."""
    engine = create_engine(f"sqlite:///{run / HOME / STATE}")
    with engine.begin() as db:
        rates_table.opened(db, make_config(), COORDINATOR, None)
    engine.dispose()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Halfway through, on a chain."""
    run = write_large_run(tmp_path / "run", steps=3, node_count=5, samples=16, answer_bytes=100)
    tree = json.loads((run / RUN_FILE).read_text())
    tree["config"] |= {"steps": 6}
    tree["config"]["swarm"] |= {"port": 7000}
    tree["config"]["ledger"] = {"rpc": CONTRACT.rpc}
    (run / RUN_FILE).write_text(json.dumps(tree))
    (run / "metrics" / "supervisor.jsonl").write_text('{"time": 1, "event": "start", "total_steps": 6}\n')
    (run / CONTRACT_FILE).write_text(CONTRACT.model_dump_json())
    return run


def test_a_run_on_a_chain_is_joined_like_any_other_once_its_coordinator_has_started(run: Path) -> None:
    with serving_pages(run) as url:
        before = document(url, "join")
        assert (before["line"], before["why"]) == ("", "The coordinator has not started yet.")
    coordinator_started(run)
    with serving_pages(run) as url:
        found = document(url, "join")
        assert found["line"] == f"shoal worker --join http://127.0.0.1:7000#{COORDINATOR.address}"
        assert found["why"] == ""
        assert found["pay"].endswith(" wei per accepted token")
    assert not (run / "keys").exists(), "whose address it is follows from what it signed, not from its key"


def test_a_run_on_a_chain_that_is_over_gives_no_more_leases(run: Path) -> None:
    coordinator_started(run)
    (run / "metrics" / "supervisor.jsonl").write_text('{"time": 1, "event": "start", "total_steps": 3}\n')
    with serving_pages(run) as url:
        assert document(url, "join")["why"] == "The run is over: there are no more leases."


def test_a_machine_is_told_to_come_back_when_the_coordinator_is_at_work(run: Path) -> None:
    coordinator_started(run)
    for alive, why in ((True, ""), (False, "The coordinator is not at work now: joining works once the run is ")):
        put_status(run, "coordinator", alive=alive)
        with serving_pages(run) as url:
            found = document(url, "join")
            assert found["why"][: len(why) or None] == why
            assert found["lend"] == f"shoal lend start http://127.0.0.1:7000#{COORDINATOR.address} --when idle"
        (run / "locks" / "coordinator").unlink(missing_ok=True)


def test_the_ledger_page_names_the_contract_and_how_to_read_it_and_not_the_chains_node(run: Path) -> None:
    with serving_pages(run) as url:
        found = document(url, "ledger")
    assert found["kind"] == "contract"
    assert dict(found["pairs"]) == {
        "contract": CONTRACT.contract,
        "number of the chain": "31337",
        "created by transaction": CONTRACT.created,
        "run": "test",
    }
    assert "shoal ledger verify RUN" in found["commands"]
    assert "203.0.113.77" not in json.dumps(found)


def test_a_node_of_a_run_on_a_chain_has_an_account_there_and_none_is_denied(run: Path) -> None:
    with serving_pages(run) as url:
        found = document(url, f"node/{address(3)}")
        assert found["account"] is None
        assert dict(found["contract"]["pairs"])["contract"] == CONTRACT.contract
        assert found["contract"]["commands"] == [f"shoal node {address(3)} RUN"]
        (run / CONTRACT_FILE).unlink()
    with serving_pages(run) as url:
        found = document(url, f"node/{address(3)}")
        assert found["contract"] is None
        assert found["no_account"].startswith("The ledger is not here")


def test_a_contract_file_that_is_damaged_is_said_to_be_and_every_page_is_shown(run: Path) -> None:
    (run / CONTRACT_FILE).write_text("{")
    with serving_pages(run) as url:
        for found in (document(url, "ledger"), document(url, f"node/{address(3)}")["contract"]):
            assert "does not say which contract the run's ledger is" in found["why"]
            assert str(run) not in found["why"]


SHOWN = {
    "/ledger": "which this page neither calls nor verifies",
    f"/node/{address(3)}": "what the node earned, has locked and lost is there",
    "/join": f"#{COORDINATOR.address}",
}


@pytest.mark.parametrize("path", SHOWN)
def test_a_browser_shows_where_the_ledger_is_and_how_to_join(browser: Browser, axe: str, run: Path, path: str) -> None:
    coordinator_started(run)
    with serving_pages(run) as url, opened(browser) as page:
        page.open(url + path, "document.querySelector('main .card, main .tile') && !document.querySelector('.loading')")
        text = page.run("document.body.innerText")
        assert SHOWN[path] in text
        assert "No account" not in text
        assert "not started" not in text
        assert path == "/join" or CONTRACT.contract in text
        assert axe_faults(page, axe) == []
        page.size(360, 740, phone=True)
        page.until("innerWidth === 360")
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert page.faults == []
