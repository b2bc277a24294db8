"""The run with length budgets: what its config promises, and what the benchmark concludes from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.configs import changed, checkout_config
from benchmarks.training.length import CONFIG, conclude
from shoal.models.base import base_model_dir
from shoal.roles.evaluator import Evaluation
from shoal.tasks.build import build_source
from shoal.tasks.length import budgeted
from shoal.tasks.source import score

AFTER = Evaluation(100, 0.95, 0.9, 0.97, 0.96, 0, lengths={"16": 17.0, "32": 31.0}, length_rank=0.93)
BEFORE = replace(AFTER, pass_at_1=0.9, lengths={"16": 30.0, "32": 30.0}, length_rank=0.01)
ROOT = Path(__file__).parents[2]


def test_the_bars_are_on_each_answers_length_and_on_the_task_reward_either_way() -> None:
    without = replace(AFTER, pass_at_1=0.98, lengths={}, length_rank=None)
    result = conclude(BEFORE, AFTER, without)
    assert result.met("rank_correlation")
    assert result.met("task_reward_difference")
    assert result.values["task_reward_difference"] == pytest.approx(0.03)
    assert result.values["tokens_at_16"] == 17.0
    assert result.values["tokens_at_16_base"] == 30.0
    assert not conclude(BEFORE, replace(AFTER, length_rank=0.89), without).met("rank_correlation")
    assert not conclude(BEFORE, replace(AFTER, pass_at_1=0.92), without).met("task_reward_difference")


def test_both_runs_start_from_one_base_model_that_was_shown_every_form_of_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    config = checkout_config(CONFIG)
    assert base_model_dir(config) == base_model_dir(changed(config, {"length.targets": []}))
    task = build_source(config.tasks).task("train", 0)
    asked = {task.prompt, *(budgeted(task, target, config.length).prompt for target in config.length.targets)}
    shown = {line.template.replace("{question}", task.prompt) for line in config.model.tiny.warm_tasks}
    assert asked == shown


def test_its_worked_answers_are_right_differ_in_length_and_need_their_thinking_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    config = checkout_config(CONFIG)
    source = build_source(config.tasks)
    tasks = [source.task("train", index) for index in range(50)]
    answers = [task.answer or "" for task in tasks]
    assert all(score(source, *pair).reward == 1.0 for pair in zip(tasks, answers, strict=True))
    assert all(score(source, *pair).reward == 0.0 for pair in zip(tasks, answers[1:], strict=False))
    final = answers[0].rpartition("</think>")[2]
    assert score(source, tasks[0], final).reward == 0.0
    lengths = [len(answer) + 1 for answer in answers]
    assert min(lengths) <= min(config.length.targets)
    assert max(lengths) >= max(config.length.targets)
