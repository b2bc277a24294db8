"""What people type."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal import cli
from shoal.crypto.keys import checksummed, short
from shoal.errors import LedgerError
from shoal.ledger.acts import Fund
from shoal.ledger.entry import Entry, Statement
from shoal.ledger.explain import explain
from shoal.ledger.export import export, read_file, verify_file
from tests.support.ledgers import (
    ARBITER,
    COORDINATOR,
    EVIDENCE,
    NODES,
    RUN,
    STRANGER,
    VALIDATORS,
    Court,
    leaf,
    sqlite_ledger,
)

from .test_tamper import fill


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with a ledger in which something happened."""
    ledger = sqlite_ledger(tmp_path)
    fill(ledger)
    kept = Statement.sign(VALIDATORS[0], RUN, ledger.name, ledger.head)
    (tmp_path / "heads.jsonl").write_text(kept.model_dump_json() + "\n")
    ledger.close()
    return tmp_path


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console takes its width from the environment that it was made in, which differs from runner to runner."""
    monkeypatch.setattr(cli.ledger, "console", Console(width=200))


def shoal(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.output


def test_verify_says_what_it_verified_and_who_signed_it(run: Path) -> None:
    said = shoal("ledger", "verify", run, "--coordinator", COORDINATOR.address, "--heads", run / "heads.jsonl")
    assert "verified" in said
    assert said.count("by validator") == 3


def test_an_export_verifies_alone_and_without_torch_or_a_web_server(run: Path) -> None:
    target = run / "elsewhere" / "x.jsonl"
    assert "shoal ledger verify" in shoal("ledger", "export", run, target)
    assert "verified" in shoal("ledger", "verify", target)
    code = (
        "import sys; from pathlib import Path; from shoal.ledger.export import verify_file;"
        "import shoal.cli.ledger_views;"
        "verify_file(Path(sys.argv[1])); print(sorted({'torch', 'fastapi', 'web3', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_tampered_export_names_the_first_bad_entry(run: Path) -> None:
    target = run / "x.jsonl"
    shoal("ledger", "export", run, target)
    lines = target.read_text().splitlines()
    lines[7] = lines[7].replace('"time":1', '"time":2')
    target.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="entry 7"):
        shoal("ledger", "verify", target)


def test_two_copies_that_part_are_shown_with_both_seals(run: Path) -> None:
    entries = list(read_file(run / "ledger.db"))
    said = Statement.sign(COORDINATOR, RUN, entries[0].hash, Fund(id="other", amount=1))
    other = [*entries[:-1], Entry.after(COORDINATOR, entries[-2], said, entries[-1].time)]
    export(other, run / "other.jsonl")
    with pytest.raises(LedgerError, match="both sealed") as caught:
        shoal("ledger", "verify", run, "--against", run / "other.jsonl")
    assert entries[-1].seal in str(caught.value)
    assert other[-1].seal in str(caught.value)


def test_show_earnings_and_node_say_what_happened(run: Path) -> None:
    assert "2 submissions of step 0" in shoal("ledger", "show", run, "-n", "100")
    earned = shoal("earnings", run)
    assert short(checksummed(NODES[0].address)) in earned
    assert short(checksummed(STRANGER.address)) not in earned
    history = shoal("node", NODES[1].address, run)
    assert "0/1 accepted" in history
    assert "challenge" in history
    assert "standing 67" in shoal("node", VALIDATORS[0].address, run)
    with pytest.raises(LedgerError, match="no address in this ledger begins with it"):
        shoal("node", "0x" + "11" * 20, run)


def test_a_cheater_of_whose_files_none_was_accepted_is_shown_without_an_account(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    court = Court(ledger)
    court.begin()
    court.judged([leaf(0), leaf(1, STRANGER), leaf(2, ARBITER)], "arv")
    assert STRANGER.address not in ledger.state.accounts
    assert re.search(rf"{short(checksummed(STRANGER.address))} .* 0 +0 +1 .*no account", shoal("earnings", tmp_path))
    court.judged([leaf(3, STRANGER)], "r")
    ledger.close()
    earned = shoal("earnings", tmp_path)
    assert re.search(rf"{short(checksummed(STRANGER.address))} .* 0 +0 +2 +0 +0 +0 banned", earned)
    assert re.search(rf"{short(checksummed(ARBITER.address))} .* no account", earned)
    history = shoal("node", STRANGER.address[:10], tmp_path)
    assert "there was nothing to slash" in history
    assert "slashed 0, voided 0, rejects 2" in history
    assert "0/3 rejected" in history


def test_explain_says_who_judged_a_submission_with_which_evidence(run: Path) -> None:
    said = "\n".join(explain(verify_file(run / "ledger.db").state, 0, 1))
    assert f"evidence {EVIDENCE}" in said
    assert "the arbiter ruled: accepted" in said
