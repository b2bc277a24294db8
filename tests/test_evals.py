"""Held-out measurement: the same for every version, in the config's own bounds, and by one evaluator at a time."""

from pathlib import Path

import pytest

from shoal.errors import StorageError, TaskError
from shoal.evals import by_target, evaluate, start_evaluator
from shoal.files import locked
from shoal.measure.stats import wilson
from shoal.models.load import Policy
from shoal.tasks.build import build_source
from shoal.tasks.scorer import Scorer
from shoal.tasks.source import InProcess

from .swarm import Coin, entries, make_config, make_run

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
    said = r"sampling\.max_prompt_tokens = 2: held-out task 10 of coin takes 4 tokens; raise it to at least that"
    with pytest.raises(TaskError, match=said):
        evaluate(tiny_policy, coin, InProcess(coin), config, TASKS)


def test_a_second_evaluator_is_refused(tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.evals.TAKEOVER_S", 0.1)
    run = make_run(tmp_path / "run", make_config(tiny_dir))
    with locked(run.path / "locks" / "evaluator", "taken"), pytest.raises(StorageError, match="another one is at work"):
        start_evaluator(run)
    assert entries(run, "evaluator", "eval") == []


@pytest.mark.parametrize(("solved", "tasks"), [(0, 1), (1, 1), (0, 256), (256, 256), (106, 256)])
def test_an_interval_holds_its_share(solved: int, tasks: int) -> None:
    low, high = wilson(solved, tasks)
    assert 0 <= low <= solved / tasks <= high <= 1
