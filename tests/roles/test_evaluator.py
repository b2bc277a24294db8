"""Held-out measurement: the same for every version, in the config's own bounds, and by one evaluator at a time."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.errors import StorageError, TaskError
from shoal.evals.stats import wilson
from shoal.files import locked
from shoal.models.load import Policy
from shoal.roles.evaluator import Evaluation, by_target, evaluate, start_evaluator
from shoal.rundir import RunDir
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import InProcess
from shoal.watch.show import print_status
from shoal.watch.summary import summarise
from tests.support.roles_in_process import TREE, Coin, entries, make_config, make_run, make_worker, train, working

TASKS = 12


def test_an_evaluation_is_the_same_each_time_and_counts_what_is_solved(tiny_policy: Policy, tiny_dir: Path) -> None:
    config, coin = make_config(tiny_dir), Coin()
    first, again = (evaluate(tiny_policy, coin, InProcess(coin), config, TASKS) for _ in range(2))
    assert first == again
    assert 0 < first.pass_at_1 < 1
    assert first.low < first.pass_at_1 < first.high
    assert (first.tasks, first.failed) == (TASKS, 0)


def test_lengths_are_told_by_target_and_only_where_there_are_targets(tiny_policy: Policy, tiny_dir: Path) -> None:
    coin = Coin()
    budgets = {"targets": [2, 3, 5], "prompt": "{prompt}{target}"}
    config = make_config(tiny_dir, length=budgets, sampling={"max_prompt_tokens": 16})
    found = evaluate(tiny_policy, coin, InProcess(coin), config, TASKS)
    assert set(found.lengths) == {"2", "3", "5"}
    assert all(1 <= mean <= config.sampling.max_new_tokens for mean in found.lengths.values())
    without = evaluate(tiny_policy, coin, InProcess(coin), make_config(tiny_dir), TASKS)
    assert (without.lengths, without.length_rank) == ({}, None)


def test_targets_and_lengths_are_paired_answer_by_answer() -> None:
    means, rank = by_target([16, 8, 16, 8], [15, 9, 17, 7])
    assert means == {"8": 8.0, "16": 16.0}
    assert rank == pytest.approx(4 / 20**0.5)


def test_held_out_answers_are_scored_as_held_out_tasks(tiny_policy: Policy, tiny_dir: Path) -> None:
    config = make_config(tiny_dir, sampling={"max_prompt_tokens": 200})
    source = build_source(config.tasks)
    with Scorer(config.tasks) as judge:
        isolated = evaluate(tiny_policy, source, judge, config, TASKS)
    assert isolated == evaluate(tiny_policy, source, InProcess(source), config, TASKS)


def test_a_prompt_that_is_too_long_names_the_setting_and_what_it_takes(tiny_policy: Policy, tiny_dir: Path) -> None:
    config = make_config(tiny_dir, sampling={"max_prompt_tokens": 2})
    coin = Coin()
    said = "max_prompt_tokens = 2: coin heldout task 10 takes 4 tokens; raise it to at least that"
    with pytest.raises(TaskError, match=said):
        evaluate(tiny_policy, coin, InProcess(coin), config, TASKS)


def test_a_second_evaluator_is_refused(tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.roles.evaluator.TAKEOVER_S", 0.1)
    run = make_run(tmp_path / "run", make_config(tiny_dir))
    with locked(run.path / "locks" / "evaluator", "taken"), pytest.raises(StorageError, match="another one is at work"):
        start_evaluator(run)
    assert entries(run, "evaluator", "eval") == []


@pytest.mark.parametrize(("solved", "tasks"), [(0, 1), (1, 1), (0, 256), (256, 256), (106, 256)])
def test_an_interval_holds_its_share(solved: int, tasks: int) -> None:
    low, high = wilson(solved, tasks)
    assert 0 <= low <= solved / tasks <= high <= 1


def test_several_answers_to_a_task_give_pass_at_k(tiny_policy: Policy, tiny_dir: Path) -> None:
    config, coin = make_config(tiny_dir, eval={"samples": 4}), Coin()
    found = evaluate(tiny_policy, coin, InProcess(coin), config, TASKS)
    assert (found.samples, list(found.pass_at)) == (4, [2, 4])
    assert found.pass_at_1 < found.pass_at[2] < found.pass_at[4] <= 1


def test_the_trainer_waits_for_no_evaluation_and_every_chosen_version_is_evaluated(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation takes until training is over, when the versions that are to follow are long removed."""
    (tmp_path / "suite.toml").write_text(
        f'tasks = 2\nsamples = 2\nmax_new_tokens = 3\n[[sources]]\nsource = "{TREE["tasks"][0]["source"]}"\n'
    )
    changes = {"at": [1, 2], "tasks": TASKS, "samples": 2, "suite": str(tmp_path / "suite.toml")}
    config = make_config(tiny_dir, steps=5, eval=changes, keep={"versions": 3}, sampling={"max_prompt_tokens": 200})
    run = make_run(tmp_path / "run", config)
    began, trained = threading.Event(), threading.Event()
    roots: dict[int, str] = {}

    def slow(*arguments: Any) -> Evaluation:
        began.set()
        assert trained.wait(60)
        return evaluate(*arguments)

    monkeypatch.setattr("shoal.roles.evaluator.evaluate", slow)
    evaluator = threading.Thread(target=start_evaluator, args=(run,), daemon=True)
    evaluator.start()
    assert began.wait(60)  # two threads cannot load models at once
    with following(run, roots), working(run, make_worker(run)):
        train(run)
    assert run.channel().numbers() == [0, 3, 4, 5]
    trained.set()
    evaluator.join(60)
    found = entries(run, "evaluator", "eval")
    assert [entry["version"] for entry in found] == [0, 1, 2, 5]
    assert all(entry["root"] == roots[entry["version"]] for entry in found)
    asked = entries(run, "evaluator", "suite")
    assert [(entry["version"], entry["suite"], entry["tasks"]) for entry in asked] == [
        (number, "suite", 2) for number in (0, 1, 2, 5)
    ]
    assert list((run.path / "evals").iterdir()) == []
    told = io.StringIO()
    print_status(run.path, Console(file=told, width=120))
    assert "suite suite version 5  pass@1" in told.getvalue()
    summary = summarise(run.path)
    assert summary.suite is not None
    assert summary.suite.startswith("suite version 5  pass@1")


@contextmanager
def following(run: RunDir, roots: dict[int, str]) -> Iterator[None]:
    """Notes the root of every version as it is published."""
    over = threading.Event()

    def look() -> None:
        versions = (run.channel().version(number) for number in run.channel().numbers())
        roots.update({version.number: version.root for version in versions if version is not None})

    def follow() -> None:
        while not over.wait(0.01):
            look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look()
