"""Numeric evidence for people: verdicts carry it, the coordinator keeps it; `why`, `node` and `status` show it.

The arithmetic behind it is tested in `tests/validate/numerics`.
"""

import io
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.ledger_views import show_node
from shoal.client.ledger import record_at
from shoal.client.run_status import NodeRecord, ask_coordinator, coordinator_says, explanation, node_record, print_swarm
from shoal.coordinator.verdicts import evidence_against
from shoal.crypto.keys import checksummed
from shoal.errors import LedgerError
from shoal.protocol.numeric_evidence import NumericEvidence, meaning, standing
from shoal.protocol.verdict import NUMBERS, ROUNDING, Finding, Verdict
from shoal.rundir import RUN_FILE, write_run_file
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.judge import BETS, Weighed, finding_of
from tests.support.coordinator_in_process import VALIDATOR, World, key_of, world_at
from tests.support.ledger_of_a_run import pay_in

A = key_of("a").address
FAIR = NumericEvidence(-0.4, 512, "gaps 1.5", 0.2, 1, BAN_NATS)
ODD = NumericEvidence(7.25, 2048, "shift int8 weights", 3.14, 41, BAN_NATS)


def judge(world: World, numbers: NumericEvidence | None, finding: Finding | None = None) -> str:
    """Hands in a file and judges it; its name, as `shoal why` takes it."""
    world.hand_in("a", world.take("a"))
    (upload,) = world.validator.waiting(0, 5)
    sha256 = world.validator.read(upload)[1]
    verdict = Verdict(finding is None, sha256, True, finding, samples=8, tokens=40, numbers=numbers)
    world.validator.judge(upload, verdict)
    return f"{upload.step}/{upload.submission}"


def shown(show: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(console)
    return console.export_text()


def test_a_contributor_sees_the_evidence_of_a_file_and_against_its_node(small_world: World) -> None:
    small_world.announce()
    name = judge(
        small_world, ODD, Finding(ROUNDING, "a file is dropped from 6.9 nats on", "honest rounding", "7.2 nats")
    )
    told = "\n".join(explanation(ask_coordinator(small_world.url, name), 0.0))
    assert "found: 7.2 nats" in told
    assert "node: evidence 3.1 of 13.8 nats in 41 files" in told
    assert "to do: nothing, if it is rare" in told
    assert "to do: check that the worker computes as the run asks" in told
    assert "ask the run's owner to measure your machine" in told


def test_an_accepted_file_has_its_evidence_too_and_one_that_was_not_weighed_has_none(small_world: World) -> None:
    small_world.announce()
    fair, unweighed = judge(small_world, FAIR), judge(small_world, None)
    told = explanation(ask_coordinator(small_world.url, fair), 0.0)
    assert "numbers: nothing against the file in 512 tokens (-0.4 nats)" in told
    assert "node: evidence 0.2 of 13.8 nats in 1 file" in told
    told = explanation(ask_coordinator(small_world.url, unweighed), 0.0)
    assert not [line for line in told if line.startswith(("numbers", "node", "to do"))]
    assert node_record(small_world.url, A).evidence == "evidence 0.2 of 13.8 nats in 1 file"


def test_what_is_against_a_node_is_that_of_its_last_verdict_also_after_a_restart(small_world: World) -> None:
    small_world.announce()
    assert node_record(small_world.url, A).evidence == ""
    for numbers in (FAIR, ODD):
        judge(small_world, numbers)
    small_world.stop()
    small_world.start()
    assert node_record(small_world.url, A).evidence == "evidence 3.1 of 13.8 nats in 41 files"
    with small_world.database._engine.connect() as db:
        against = evidence_against(db, A)
        assert evidence_against(db, key_of("b").address) is None
    assert against is not None
    assert asdict(against) == {"nats": ODD.node_nats, "files": 41, "limit": BAN_NATS}


def test_status_and_node_show_it_and_float32_runs_have_no_such_column(small_world: World) -> None:
    small_world.announce()
    judge(small_world, None)
    assert "nats" not in shown(lambda console: print_swarm(small_world.url, console))
    judge(small_world, ODD)
    small_world.coordinator._seen = None  # an overview is half a second old at most
    assert "3.1 of 13.8" in shown(lambda console: print_swarm(small_world.url, console))
    pay_in(small_world, "a")
    record = record_at(small_world.url)
    told = shown(lambda console: show_node(record, A, console, lambda node: coordinator_says(small_world.url, node)))
    assert "evidence 3.1 of 13.8 nats in 41 files" in told
    assert "evidence" not in shown(lambda console: show_node(record, A, console))


def test_a_node_whose_first_step_is_not_over_sees_what_is_against_it(small_world: World) -> None:
    """Its files are on no ledger yet, and it may be banned already."""
    small_world.announce()
    judge(small_world, ODD, Finding(ROUNDING, "a rule", "honest rounding", "7.2 nats"))
    record = record_at(small_world.url)

    def says(node: str) -> list[str]:
        return coordinator_says(small_world.url, node)

    told = shown(lambda console: show_node(record, checksummed(A), console, says))
    assert told.splitlines()[0] == f"{checksummed(A)}, not on the ledger yet"
    assert "evidence 3.1 of 13.8 nats in 41 files" in told
    for address, source in ((A, lambda _: []), (A[:20], says), (key_of("nobody").address, says)):
        with pytest.raises(LedgerError, match="no address in this ledger begins with it"):
            shown(lambda console, who=address, lines=source: show_node(record, who, console, lines))


@pytest.mark.parametrize("enforce", [True, False])
def test_a_node_of_a_run_that_only_reports_is_not_told_of_a_ban(tmp_path: Path, enforce: bool) -> None:
    database, audit = f"sqlite:///{tmp_path / 'state.db'}", {"enforce": enforce}
    with world_at(tmp_path, database, model={"dtype": "bfloat16"}, audit=audit) as world:
        world.announce()
        judge(world, replace(ODD, node_nats=40.0))
        config = world.config.model_copy(
            update={"swarm": world.config.swarm.model_copy(update={"database": world.url_of_database})}
        )
        write_run_file(tmp_path / "run", config, 0.0)
        for where in (world.url, str(tmp_path / "run")):
            (said,) = coordinator_says(where, A)
            assert said.startswith("evidence 40.0 of 13.8 nats in 41 files; ")
            assert said.endswith("reaches the limit is banned" if enforce else "it is only reported (audit.enforce)")


def test_a_ledger_whose_run_cannot_be_read_is_shown_without_what_its_coordinator_knew(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text("{}")
    assert node_record(str(tmp_path), A) == NodeRecord()
    assert coordinator_says(str(tmp_path), A) == []


@pytest.mark.parametrize(
    "wrong", [{"nats": "much"}, {"limit": 0}, {"tokens": -1}, {"strongest": "x" * 101}, {"more": 1}, {"nats": None}]
)
def test_rubbish_is_not_entered_as_evidence(small_world: World, wrong: dict[str, Any]) -> None:
    small_world.announce()
    small_world.hand_in("a", small_world.take("a"))
    (upload,) = small_world.validator.waiting(0, 5)
    body = {"accept": True, "sha256": small_world.validator.read(upload)[1], "audited": True}
    sent = small_world.request(VALIDATOR, "PUT", "/v1/verdicts/0/0", body | {"numbers": asdict(FAIR) | wrong})
    assert sent.status_code == 422
    assert node_record(small_world.url, A).evidence == ""


def test_evidence_in_a_verdict_survives_its_json() -> None:
    verdict = Verdict(True, "ab" * 32, True, numbers=ODD)
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.parametrize(
    "tree",
    [None, 3, {}, asdict(ODD) | {"nats": "x"}, asdict(ODD) | {"strongest": 1}, asdict(ODD) | {"tokens": 10**400}],
)
def test_what_a_coordinator_made_up_is_not_shown_as_evidence(tree: Any) -> None:
    assert NumericEvidence.read(tree) is None


def test_evidence_reads_as_a_sentence() -> None:
    assert str(ODD).startswith(
        "7.2 nats of evidence in 2,048 tokens: log-probs are off as they would be with this: int8"
    )
    assert NumericEvidence.read(asdict(ODD)) == ODD
    assert standing(-3.0, 1, BAN_NATS) == "evidence 0.0 of 13.8 nats in 1 file"
    assert all(meaning(bet) != bet for bet in BETS), "every bet of the judge has words"
    assert meaning("shift older version").endswith("older version")


def test_a_finding_says_what_the_number_was_and_which_rule_it_broke() -> None:
    over = Account(files=12, won=dict.fromkeys(BETS, BAN_NATS + 1))
    weighed = {nats: Weighed(dict.fromkeys(BETS, nats), 1000) for nats in (0.0, 8.0, 20.0)}
    blamed, dropped, node_over = (
        finding_of(weighed[20.0], over),
        finding_of(weighed[8.0], Account()),
        finding_of(weighed[0.0], over),
    )
    assert blamed is not None
    assert dropped is not None
    assert node_over is not None
    assert (blamed.check, dropped.check, node_over.check) == (NUMBERS, ROUNDING, ROUNDING)
    assert "20.0 nats of evidence in 1,000 tokens" in str(blamed)
    assert "13.8 nats" in blamed.rule
    assert "a file is dropped from 6.9 nats on" in dropped.rule
    assert "files of a node are dropped from 13.8 nats against it on" in node_over.rule
    assert "evidence 14.8 of 13.8 nats in 12 files" in str(node_over)
    assert math.isclose(over.held_against, BAN_NATS + 1)
