"""A run that draws by difficulty: a worker that draws by another table is rejected, and honest workers never are."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import save_file

from shoal.errors import RolloutError, TaskError
from shoal.generate.submission_builder import Maker
from shoal.models.load import load
from shoal.protocol.lease import Lease
from shoal.protocol.stores import roots_of
from shoal.protocol.verdict import Verdict
from shoal.protocol.version_directory import TABLE
from shoal.roles.validator import Validator
from shoal.rundir import RunDir, limits_of
from shoal.tasks.build import build_source
from shoal.tasks.difficulty import Answered, Sampler, Table
from shoal.tasks.source import InProcess, TaskSource
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.bundle import read_bundle
from shoal.validate.evidence.replay import judge_again, replay_bundle
from tests.support.memory_store import MemoryStore, memory_store
from tests.support.model_and_checks import SAMPLING, model_dir, weights
from tests.support.roles_in_process import base_version, make_config, make_run, make_worker, mixed_tasks

VERSIONS = 3


@dataclass(slots=True)
class Hall:
    """A run with a few versions, each with a table of its own, its tasks, and its validator."""

    run: RunDir
    tasks: TaskSource
    tables: list[Table]
    store: MemoryStore
    validator: Validator
    maker: Maker

    def hand_in(self, node: str, table_of: Callable[[Lease], Table | None] | None = None) -> Lease:
        """Files of step 2, which takes versions 1 and 2, all with version 2."""
        lease = self.store.lease(node, 2)
        assert lease is not None
        assert (lease.step, lease.oldest) == (2, 1)
        version = self.run.channel().version(2)
        assert version is not None
        self.maker.table_of = table_of or self.store.table
        self.store.put(lease, self.maker.file(lease, version)[1])
        return lease

    def verdict(self, lease: Lease) -> Verdict:
        self.validator.judge(self.store.waiting(0, 9))
        return self.store.records.verdicts[lease.step, lease.submission]


@pytest.fixture
def hall(tmp_path: Path) -> Hall:
    config = make_config(
        model_dir("short"),
        tasks=mixed_tasks(tmp_path),
        sampling=SAMPLING["short"] | {"max_prompt_tokens": 24},
        sampler={"kind": "difficulty"},
        train={"groups_per_step": 64},
        workers={"groups_per_submission": 8},
        audit={"strikes": 50},
    )
    run = make_run(tmp_path / "run", config)
    tasks = build_source(config.tasks)
    sampler = Sampler(tasks, config.sampler)
    rates = sampler.start()
    tables = [sampler.table(rates)]
    channel = run.channel()
    for number in range(1, VERSIONS):
        # Of each version another third of the rows is solved sometimes, and the others never.
        step = [Answered("mix", n, n % 3 == number and i % 2 == 0) for n in range(30) for i in range(8)]
        rates = sampler.after(rates, step)
        tables.append(sampler.table(rates))
        with channel.publish(number) as staging:
            save_file(weights("short")[number % 2], staging / "model.safetensors")
            (staging / TABLE).write_text(tables[-1].to_json())
    worker = make_worker(run, tasks=tasks)
    worker.maker.policy.set_weights(weights("short")[0], "version 2")
    store = memory_store(run, limits_of(config, worker.maker.policy.vocab))
    checks = Checks(config, load(run.base_model), tasks, InProcess(tasks), roots_of(channel), store.table)
    metrics = run.metrics("validator")
    status = run.status("validator")
    validator = Validator(run, channel, store, checks, Audits(config.audit), status, metrics, base_version(run))
    return Hall(run, tasks, tables, store, validator, worker.maker)


def said(path: Path) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=400)
    agrees = replay_bundle(path, console)
    assert isinstance(console.file, io.StringIO)
    return agrees, console.file.getvalue()


def test_the_versions_have_different_tables(hall: Hall) -> None:
    assert len({table.to_json() for table in hall.tables}) == VERSIONS
    assert [hall.run.channel().table(number) for number in range(VERSIONS)] == hall.tables


def test_honest_files_are_accepted_whole_and_of_both_sources(hall: Hall) -> None:
    leases = [hall.hand_in("honest") for _ in range(3)]
    verdicts = [hall.verdict(lease) for lease in leases]
    assert [(verdict.accept, verdict.audited) for verdict in verdicts] == [(True, True)] * 3
    accepted = list(hall.store.accepted(2))
    assert {sample.source for file in accepted for sample in file.rollouts} == {"mix", "spell_backward"}
    mixed = [sample.task for file in accepted for sample in file.rollouts if sample.source == "mix"]
    assert all(0 <= task < 30 for task in mixed)


@pytest.mark.parametrize("drawn_by", ["older", "newer", "its own", "none"])
def test_who_draws_by_another_table_is_found_out_and_anybody_can_see_it(
    hall: Hall, drawn_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Table(parts=tuple(part.model_copy(update={"share": 1}) for part in hall.tables[1].parts))
    tables = {"older": hall.tables[0], "newer": hall.tables[2], "its own": own, "none": None}
    if drawn_by == "none":
        monkeypatch.setattr("shoal.generate.submission_builder.checked_table", lambda *_: None)
    lease = hall.hand_in("cheat", lambda _: tables[drawn_by])
    verdict = hall.verdict(lease)
    assert not verdict.accept
    assert verdict.finding is not None
    assert verdict.finding.check == "tasks"
    assert hall.validator.strikes["cheat"] == 1
    bundle = hall.run.path / verdict.evidence
    assert read_bundle(bundle).table == hall.tables[1]
    # The bundle alone shows it: neither the versions nor their tables are there any more.
    hall.run.channel().retract(0)
    agrees, text = said(bundle)
    assert agrees, text


def test_a_bundle_without_its_table_convicts_nobody(hall: Hall) -> None:
    lease = hall.hand_in("cheat", lambda _: hall.tables[0])
    bundle = hall.run.path / hall.verdict(lease).evidence
    tree = json.loads(bundle.read_text())
    honest = tree["table"]
    bundle.write_text(json.dumps(tree | {"table": None}))
    found = judge_again(read_bundle(bundle), bundle.parent)
    assert found is not None
    assert found.check == "version"
    rubbish_of: list[Any] = [[], {"parts": []}, {"parts": honest["parts"] * 2}, "x", 1]
    for rubbish in rubbish_of:
        bundle.write_text(json.dumps(tree | {"table": rubbish}))
        with pytest.raises(RolloutError, match="not an evidence bundle"):
            read_bundle(bundle)


def test_a_bundle_with_samples_of_no_source_is_judged_all_the_same(hall: Hall) -> None:
    lease = hall.hand_in("cheat", lambda _: hall.tables[0])
    bundle = hall.run.path / hall.verdict(lease).evidence
    tree = json.loads(bundle.read_text())
    tree["table"] = json.loads(hall.tables[0].to_json())
    tree["rollouts"][1]["source"] = "nowhere"
    bundle.write_text(json.dumps(tree))
    found = judge_again(read_bundle(bundle), bundle.parent)
    assert found is not None
    assert (found.check, found.sample) == ("tasks", tree["first"] + 1)


def test_a_bundle_with_the_table_that_was_drawn_by_refutes_the_accusation(hall: Hall) -> None:
    lease = hall.hand_in("cheat", lambda _: hall.tables[0])
    bundle = hall.run.path / hall.verdict(lease).evidence
    tree = json.loads(bundle.read_text())
    bundle.write_text(json.dumps(tree | {"table": json.loads(hall.tables[0].to_json())}))
    assert judge_again(read_bundle(bundle), bundle.parent) is None


def test_a_table_that_is_gone_is_nobodys_fault(hall: Hall) -> None:
    lease = hall.hand_in("honest")
    (hall.run.path / "weights" / "v000001" / TABLE).unlink()
    verdict = hall.verdict(lease)
    assert not verdict.accept
    assert verdict.finding is not None
    assert verdict.finding.check == "version"
    assert not hall.validator.strikes


def test_a_file_made_before_versions_were_taken_back_is_nobodys_fault(hall: Hall) -> None:
    """Version 1 comes again with another table: the file was drawn by the first, and made with what is gone."""
    lease = hall.hand_in("honest")
    channel = hall.run.channel()
    channel.retract(0)
    for number in (1, 2):
        with channel.publish(number) as staging:
            save_file(weights("short")[0], staging / "model.safetensors")
            (staging / TABLE).write_text(hall.tables[0].to_json())
    verdict = hall.verdict(lease)
    assert verdict.finding is not None
    assert verdict.finding.check == "version"
    assert not hall.validator.strikes
    hall.maker.policy.set_weights(weights("short")[0], "version 2")
    assert hall.verdict(hall.hand_in("honest")).accept


def test_a_validator_with_other_tasks_stops_rather_than_blame_anybody(hall: Hall) -> None:
    lease = hall.hand_in("honest")
    hall.validator.checks.tasks = build_source(hall.run.config.tasks[:1])
    with pytest.raises(TaskError, match="are these the tasks that the run was made with"):
        hall.verdict(lease)
