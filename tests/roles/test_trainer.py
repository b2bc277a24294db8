"""The loop in one process: fresh rollouts, each once; errors that say what to change; resume from what is whole."""

import json
import re
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import torch

from shoal.config import RunConfig
from shoal.errors import DivergedError, NoSignalError
from shoal.models.load import Policy, load
from shoal.models.weights import WEIGHTS, read_weights
from shoal.protocol.submission import groups_with_signal
from shoal.protocol.version_directory import MANIFEST
from shoal.roles.worker import Worker
from shoal.rundir import RunDir
from shoal.tasks.source import Task
from shoal.telemetry.status import read_status
from shoal.telemetry.waiting import Patience
from shoal.train.checkpoint import file_name
from shoal.train.step import StepResult, train_step
from tests.support.memory_store import records_of
from tests.support.roles_in_process import (
    Coin,
    base_version,
    entries,
    judging_store,
    make_config,
    make_run,
    make_worker,
    notes,
    train,
    working,
)
from tests.support.submissions import judge_formats
from tests.support.until import until


class Hopeless(Coin):
    def score(self, task: Task, answer: str) -> float:
        return 0.0


class Trivial(Coin):
    def score(self, task: Task, answer: str) -> float:
        return 1.0


class Broken(Coin):
    def score(self, task: Task, answer: str) -> float:
        raise RuntimeError("the judge is out")


def completed(path: Path, tiny_dir: Path, **changes: Any) -> tuple[RunDir, Worker]:
    """A run that was trained to its end, and its worker."""
    run = make_run(path, make_config(tiny_dir, **changes))
    worker = make_worker(run)
    with working(run, worker):
        train(run)
    return run, worker


def prefilled(run: RunDir, worker: Worker) -> None:
    """Everything that version 0 may serve, handed in before the trainer starts."""
    while (lease := worker.store.lease(worker.name, 0)) is not None:
        worker.store.put(lease, worker.maker.file(lease, base_version(run))[1])
    judge_formats(judging_store(run, worker), 0, run.config.steps)


def load_poisoned(directory: Path, **options: Any) -> Policy:
    policy = load(directory, **options)
    with torch.no_grad():
        policy.weights()["model.norm.weight"][0] = float("nan")
    return policy


def steps_of(run: RunDir) -> list[dict[str, Any]]:
    return entries(run, "trainer", "step")


def folder(run: RunDir, version: int) -> Path:
    return run.checkpoints / f"step-{version:06d}"


def extended(run: RunDir, steps: int) -> RunDir:
    """The same run, asked to go on to another number of steps."""
    return make_run(run.path, run.config.model_copy(update={"steps": steps}))


@pytest.mark.parametrize("level", [0, 1, 3])
def test_step_k_uses_versions_k_minus_async_level_to_k_and_each_rollout_once(
    tmp_path: Path, tiny_dir: Path, level: int
) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, async_level=level, steps=5)
    steps = steps_of(run)
    assert [entry["step"] for entry in steps] == [0, 1, 2, 3, 4]
    for entry in steps:
        step = entry["step"]
        assert all(max(0, step - level) <= version <= step for version in entry["versions"])
        assert entry["staleness_max"] <= level
        assert len(entry["submissions"]) == len(set(entry["submissions"]))
        # What the files say themselves, not only what the trainer says of them.
        for number in entry["submissions"]:
            path = records_of(run.path).folder / f"step-{step:06d}" / f"{number:04d}.parquet"
            made_with = int(pq.read_metadata(path).metadata[b"shoal.version"])
            assert max(0, step - level) <= made_with <= step
    assert run.channel().numbers()[-1] == 5
    (status,) = [s for s in read_status(run.path) if s.role == "trainer"]
    assert (status.state, status.doing) == ("done", "5 steps trained")


def test_version_k_plus_1_is_what_step_k_left_and_the_export_is_the_last(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir)
    versions = [read_weights(run.path / "weights" / f"v{n:06d}", "float32") for n in range(4)]
    for before, after in pairwise(versions):
        assert any(not torch.equal(before[name], after[name]) for name in before)
    exported = load(run.path / "model").weights()
    assert all(torch.equal(exported[name], tensor) for name, tensor in versions[-1].items())


def test_the_trainer_says_of_each_file_of_a_step_what_it_took_to_generate(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2, train={"groups_per_step": 8})
    told = {entry["step"]: entry["generated"] for entry in entries(run, "trainer", "collected")}
    assert len(told) == 2
    for entry in steps_of(run):
        made = told[entry["step"]]
        assert made.keys() == {str(number) for number in entry["submissions"]}
        drawn = sum(work["drawn"] for work in made.values())
        assert drawn == pytest.approx(entry["samples_seen"] * entry["completion_tokens_mean"])


def test_a_step_trains_only_on_groups_with_signal_and_says_how_many_had_none(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2, train={"groups_per_step": 8})
    for entry in steps_of(run):
        assert entry["groups"] >= 8
        assert entry["samples"] == 4 * entry["groups"]
        seen = entry["samples_seen"] / 4
        assert entry["groups"] / seen + entry["groups_all_right"] + entry["groups_all_wrong"] == pytest.approx(1.0)


def test_without_the_online_filter_a_step_is_the_groups_that_come_first(tmp_path: Path, tiny_dir: Path) -> None:
    plain = {"groups_per_step": 8, "online_filter": False}
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2, async_level=0, train=plain)
    for entry in steps_of(run):
        assert (entry["groups"], entry["samples"], entry["samples_seen"]) == (8, 32, 32)
        assert entry["groups_all_right"] + entry["groups_all_wrong"] > 0, "all had signal: nothing was tried"


def test_without_the_online_filter_a_step_that_teaches_nothing_goes_by(tmp_path: Path, tiny_dir: Path) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, steps=1, train={"online_filter": False}))
    prefilled(run, make_worker(run, tasks=Hopeless()))
    train(run)
    (entry,) = steps_of(run)
    assert (entry["groups"], entry["groups_all_wrong"], entry["reward"]) == (4, 1.0, 0.0)


def test_without_the_online_filter_a_step_whose_scorer_always_fails_is_still_an_error(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, steps=1, train={"online_filter": False}))
    prefilled(run, make_worker(run, tasks=Broken()))
    with pytest.raises(NoSignalError, match="100% with a failed scorer"):
        train(run)


def test_at_level_0_two_runs_of_one_seed_give_the_same_weights_bit_for_bit(tmp_path: Path, tiny_dir: Path) -> None:
    # Level 0 leaves nothing to timing, whatever the interleaving of trainer and worker.
    roots = []
    for name in ("one", "two"):
        run, _ = completed(tmp_path / name, tiny_dir, async_level=0, steps=2)
        version = run.channel().version(2)
        assert version is not None
        roots.append(version.root)
    assert roots[0] == roots[1]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (Hopeless(), r"\(0% all right, 100% all wrong, 0% with a failed scorer\); .* too hard .*tasks\.options"),
        (Trivial(), r"\(100% all right, 0% all wrong, 0% with a failed scorer\); .* solved: make them harder"),
        (
            Broken(),
            r"\(0% all right, 0% all wrong, 100% with .*\); the scorer failed, first with: coin .* the judge is out",
        ),
    ],
)
def test_a_run_without_signal_stops_with_the_shares_and_what_to_change(
    tmp_path: Path, tiny_dir: Path, tasks: Coin, said: str
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, train={"oversample": 2.0}))
    prefilled(run, make_worker(run, tasks=tasks))
    with pytest.raises(NoSignalError, match=rf"trainer: step 0: none of 8 groups has signal {said}"):
        train(run)
    (status,) = [s for s in read_status(run.path) if s.role == "trainer"]
    assert status.state == "failed"
    assert "none of 8 groups" in status.doing


def test_a_random_model_on_real_tasks_is_told_that_they_are_too_hard(tmp_path: Path, tiny_dir: Path) -> None:
    from shoal.tasks.build import build_source

    run = make_run(tmp_path / "run", make_config(tiny_dir, train={"oversample": 1.0}))
    prefilled(run, make_worker(run, tasks=build_source(run.config.tasks)))
    with pytest.raises(NoSignalError, match=r"100% all wrong.*sampling\.group_size, now 4"):
        train(run)


def test_a_step_with_too_few_groups_trains_on_those_it_has_and_says_so(tmp_path: Path, tiny_dir: Path) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, steps=1, train={"oversample": 1.0, "groups_per_step": 8}))
    prefilled(run, make_worker(run))
    train(run)
    (entry,) = steps_of(run)
    assert 0 < entry["groups"] < 8
    assert f"step 0 trains on {entry['groups']} of 8 groups: 8 were sampled" in notes(run)


def test_non_finite_steps_are_skipped_said_and_end_the_run_after_a_few(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, steps=6, async_level=3, train={"max_bad_steps": 2}))
    prefilled(run, make_worker(run))
    monkeypatch.setattr("shoal.train.learner.load", load_poisoned)
    with pytest.raises(DivergedError, match=r"2 steps in a row up to step 1 .* --set train\.lr=0\.0001 --out NEWDIR"):
        train(run)
    assert [entry["skipped"] for entry in steps_of(run)] == [True, True]
    assert "step 0 was skipped" in notes(run)
    assert "(1 in a row, the run stops at 2)" in notes(run)


@pytest.mark.parametrize("checkpoint_every", [1, 5])
def test_bad_steps_are_counted_across_a_restart_and_a_diverged_run_is_refused_at_once(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_every: int
) -> None:
    changes = {"max_bad_steps": 2, "checkpoint_every": checkpoint_every}
    config = make_config(tiny_dir, steps=6, async_level=3, keep={"versions": 9}, train=changes)
    run = make_run(tmp_path / "run", config)
    prefilled(run, make_worker(run))
    monkeypatch.setattr("shoal.train.learner.load", load_poisoned)
    with pytest.raises(DivergedError, match="up to step 1 "):
        train(run)
    with pytest.raises(DivergedError, match=r"2 steps in a row up to step 1 .* this run ends here"):
        train(run)
    assert len(steps_of(run)) == 2


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_a_run_that_shows_warning_signs_names_them_stops_and_is_refused_until_its_config_says_otherwise(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_every: int
) -> None:
    def config(stop: int) -> RunConfig:
        watch = {"window": 2, "skip": 0, "grad_norm": 1.0001, "stop": stop}
        train = {"watch": watch, "checkpoint_every": checkpoint_every}
        return make_config(tiny_dir, steps=8, async_level=7, keep={"versions": 12}, train=train)

    run = make_run(tmp_path / "run", config(stop=1))
    prefilled(run, make_worker(run))
    real = StepResult.metrics
    grown = iter(range(1, 100))
    monkeypatch.setattr(StepResult, "metrics", lambda self: real(self) | {"grad_norm": 2.0 ** next(grown)})
    with pytest.raises(DivergedError, match=r"1 warning signs show at once \(grad_norm\), and train\.watch\.stop is 1"):
        train(run)
    done = steps_of(run)
    assert [entry["signs"] for entry in done] == [[], [], [], ["grad_norm"]]
    assert done[-1]["warning_signs"] == 1
    assert "step 3: warning sign grad_norm: the gradient norm" in notes(run)
    assert done[-1]["train_flops"] > 0
    with pytest.raises(DivergedError, match="version 4: 1 warning signs"):
        train(run)
    assert len(steps_of(run)) == 4
    train(make_run(run.path, config(stop=0)))
    assert len(steps_of(run)) == 8


def test_a_learning_rate_that_is_far_too_high_never_publishes_weights_that_are_not_finite(
    tmp_path: Path, tiny_dir: Path
) -> None:
    changes = {"lr": 3e37, "max_bad_steps": 2, "weight_decay": 1.0}
    run = make_run(tmp_path / "run", make_config(tiny_dir, steps=6, async_level=3, train=changes))
    prefilled(run, make_worker(run))
    with pytest.raises(DivergedError, match="2 steps in a row"):
        train(run)
    for number in run.channel().numbers():
        weights = read_weights(run.path / "weights" / f"v{number:06d}", "float32")
        assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_trainer_without_workers_waits_says_so_and_goes_on_when_one_comes(tmp_path: Path, tiny_dir: Path) -> None:
    """Also for much longer than wait_s: what keeps files away must not end a run."""
    run = make_run(tmp_path / "run", make_config(tiny_dir, wait_s=0.1, steps=1))
    worker = make_worker(run)
    thread = threading.Thread(target=train, args=(run,), daemon=True)
    thread.start()
    until(lambda: notes(run).count("waiting for rollouts of step 0: 0 of 4 groups with signal") >= 3)
    assert thread.is_alive()
    (status,) = [status for status in read_status(run.path) if status.role == "trainer"]
    assert (status.state, status.on, status.deadline) == ("waiting", "worker", None)
    with working(run, worker):
        thread.join(60)
    assert not thread.is_alive()
    assert [entry["step"] for entry in entries(run, "trainer", "step")] == [0]


def test_a_waiting_trainer_says_for_whom_and_what(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, wait_s=0.1, train={"groups_per_step": 300}))
    worker = make_worker(run)
    lease = worker.store.lease(worker.name, 0)
    assert lease is not None
    submission, data = worker.maker.file(lease, base_version(run))
    worker.store.put(lease, data)

    def until_interrupted() -> None:
        with suppress(InterruptedError):
            train(run)

    thread = threading.Thread(target=until_interrupted, daemon=True)
    thread.start()
    unjudged = f"0 of 300 groups with signal; 0 groups are leased, {len(submission.groups())} wait for a verdict"
    until(lambda: unjudged in notes(run))
    assert [status.on for status in read_status(run.path) if status.role == "trainer"] == ["validator"]
    judge_formats(judging_store(run, worker), 0, 0)
    until(lambda: f"{groups_with_signal(submission)} of 300 groups with signal; 0 groups" in notes(run))
    assert [status.on for status in read_status(run.path) if status.role == "trainer"] == ["worker"]
    monkeypatch.setattr(Patience, "waits", Mock(side_effect=InterruptedError))
    thread.join(60)


def test_a_run_goes_on_from_its_last_checkpoint_without_using_a_rollout_twice(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2)
    longer = extended(run, 4)
    with working(longer, make_worker(longer)):
        train(longer)
    assert [entry["step"] for entry in steps_of(longer)] == [0, 1, 2, 3]
    assert "going on with step 2" in notes(longer)
    exported = load(longer.path / "model").weights()
    last = read_weights(longer.path / "weights" / "v000004", "float32")
    assert all(torch.equal(exported[name], tensor) for name, tensor in last.items()), "the export must be the new one"


def test_a_resumed_run_learns_what_an_uninterrupted_one_does(tmp_path: Path, tiny_dir: Path) -> None:
    # Optimizer moments, warm-up and dealing all matter to the second half.
    changes = {"async_level": 0, "train": {"optimizer_steps": 2, "warmup_steps": 6}}
    whole, _ = completed(tmp_path / "whole", tiny_dir, steps=4, **changes)
    half, _ = completed(tmp_path / "half", tiny_dir, steps=2, **changes)
    rest = extended(half, 4)
    with working(rest, make_worker(rest)):
        train(rest)
    expected, resumed = whole.channel().version(4), rest.channel().version(4)
    assert expected is not None
    assert resumed is not None
    assert resumed.root == expected.root


def test_a_version_that_was_checkpointed_but_not_published_is_published_on_resume(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2)
    before = run.channel().version(2)
    shutil.rmtree(run.path / "weights" / "v000002")
    train(run)
    assert run.channel().version(2) == before


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("damage", ["altered", "without manifest", "a file"])
def test_a_damaged_newest_version_is_published_again_from_its_checkpoint(
    tmp_path: Path, tiny_dir: Path, damage: str, prepare: bool
) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2)
    before, target = run.channel().version(2), run.path / "weights" / "v000002"
    match damage:
        case "altered":
            (target / WEIGHTS).write_bytes(b"other")
        case "without manifest":
            (target / MANIFEST).unlink()
        case _:
            shutil.rmtree(target)
            target.write_text("foreign")
    if prepare:  # as shoal run does, before any role sees what is damaged
        make_run(run.path, run.config)
        newest = run.channel().latest()
        assert newest is not None
        assert newest.number == 1
    train(run)
    assert run.channel().version(2) == before
    assert run.channel().is_whole(2)


def cut_the_optimizer_short(checkpoint: Path) -> None:
    path = checkpoint / file_name("optimizer", 0, 1)
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit_of_the_weights(checkpoint: Path) -> None:
    path = checkpoint / file_name("model", 0, 1)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def lose_the_state(checkpoint: Path) -> None:
    (checkpoint / "state.json").unlink()


def empty_the_state(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text("")


def forge_the_state(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text(json.dumps([1, 2]))


@pytest.mark.parametrize(
    "damage",
    [cut_the_optimizer_short, flip_a_bit_of_the_weights, lose_the_state, empty_the_state, forge_the_state],
)
def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path: Path, tiny_dir: Path, damage: Any) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2)
    damage(folder(run, 2))
    with working(run, make_worker(run)):
        train(run)
    assert re.search(r"checkpoint step-000002: damaged \(.*\); passed over", notes(run))
    assert "going on with step 1" in notes(run)
    assert "retracted versions [2]" in notes(run)
    assert [entry["step"] for entry in steps_of(run)] == [0, 1, 1]
    assert run.channel().numbers()[-1] == 2


def test_a_checkpoint_that_was_being_written_is_no_checkpoint(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2)
    folder(run, 2).rename(run.checkpoints / ".staging-abc")
    with working(run, make_worker(run)):
        train(run)
    assert "going on with step 1" in notes(run)
    assert not list(run.checkpoints.glob(".staging-*"))


def test_rollouts_of_retracted_weights_are_refused_and_a_worker_that_outlived_them_makes_others(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker counted step 2's files while they were accepted. After the retraction they are refused: a worker that
    # went by its memory would wait for the trainer, and the trainer for the worker.
    changes = {"async_level": 0, "steps": 5, "wait_s": 15.0, "keep": {"checkpoints": 4}}
    run = make_run(tmp_path / "run", make_config(tiny_dir, **changes))

    def killed_at_step_3(*arguments: Any) -> Any:
        if arguments[-1] == 3:
            raise KeyboardInterrupt
        return train_step(*arguments)

    with working(run, make_worker(run)):
        monkeypatch.setattr("shoal.roles.trainer_rank.train_step", killed_at_step_3)
        with pytest.raises(KeyboardInterrupt):
            train(run)
        monkeypatch.setattr("shoal.roles.trainer_rank.train_step", train_step)
        lost = [run.channel().version(2), run.channel().version(3)]
        for version in (2, 3):
            shutil.rmtree(folder(run, version))
        # Step 1's rollouts are lost as well, so that the new version 2 is another one than the old.
        records = records_of(run.path)
        for place in [place for place in records.signal if place[0] == 1]:
            records.file(records.leases[place]).unlink()
            records.signal.pop(place)
            records.leases[place] = replace(records.leases[place], deadline=0.0)
        train(run)
    assert "retracted versions [2, 3]" in notes(run)
    assert run.channel().version(2) not in lost
    refused = {entry["file"].split("/")[0] for entry in entries(run, "trainer", "refused")}
    assert {"step-000002", "step-000003"} <= refused
    for step, entry in {entry["step"]: entry for entry in steps_of(run)}.items():
        assert entry["submissions"]
        for number in entry["submissions"]:
            path = records.folder / f"step-{step:06d}" / f"{number:04d}.parquet"
            footer = pq.read_metadata(path).metadata
            published = run.channel().version(int(footer[b"shoal.version"]))
            assert published is not None
            assert footer[b"shoal.weights"].decode() == published.root


def test_old_checkpoints_and_rollouts_are_cleared_as_configured(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=4, keep={"checkpoints": 2, "rollouts": 2})
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000003", "step-000004"]
    assert sorted(path.name for path in records_of(run.path).folder.iterdir()) == ["step-000002", "step-000003"]


def test_rollouts_since_the_last_whole_checkpoint_are_kept_however_few_are_asked_for(
    tmp_path: Path, tiny_dir: Path
) -> None:
    """A kill while checkpoint 2 is written takes the trainer back to step 0, whose rollouts nobody makes again."""
    run, _ = completed(tmp_path / "run", tiny_dir, steps=2, train={"checkpoint_every": 2}, keep={"rollouts": 1})
    assert sorted(path.name for path in records_of(run.path).folder.iterdir()) == ["step-000000", "step-000001"]


def test_checkpoints_less_often_than_versions_still_end_with_one(tmp_path: Path, tiny_dir: Path) -> None:
    run, _ = completed(tmp_path / "run", tiny_dir, steps=3, train={"checkpoint_every": 2})
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000002", "step-000003"]
