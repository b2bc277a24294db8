"""Suites: the same tasks and noise for every model, source by source, and two models side by side."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from shoal.config import RewardConfig, TaskConfig
from shoal.errors import ConfigError
from shoal.evals.answers import Answered
from shoal.evals.suite import (
    differences,
    evaluate_suite,
    failures,
    groups_of,
    measure_suite,
    results_of,
    table_of,
    to_json,
)
from shoal.evals.suite_catalogue import BUILT_IN, Suite, find_suite
from shoal.models.load import load
from shoal.tasks.build import build_source, split_up
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import InProcess, Score, Task

ODD = """
def task(index):
    return {"question": f"{index % 1000}?"}

def score(entry, answer):
    return float(sum(answer.encode()) % 3 == 0)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    (tmp_path / "odd.py").write_text(ODD)
    sources = [TaskConfig(source=f"python/{tmp_path}/odd.py", name=name) for name in ("first", "second")]
    return Suite(name="odd", sources=sources, tasks=12, samples=4, max_new_tokens=4, max_prompt_tokens=16)


def test_a_suite_is_measured_source_by_source_and_the_same_each_time(suite: Suite, tiny_dir: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Scorer(suite.sources) as judge:
        answered = measure_suite(load(tiny_dir), suite, judge, lambda *now: seen.append(now))
        again = measure_suite(load(tiny_dir), suite, judge, lambda *_: None)
    assert [one.scores for one in answered] == [one.scores for one in again]
    assert seen[-1] == (24, 24)
    first, second, both = results_of(suite, answered)
    assert [r.source for r in (first, second, both)] == ["first", "second", "all"]
    assert both.tasks == 24
    assert list(both.pass_at) == [1, 2, 4]
    assert first.pass_at[1].value < first.pass_at[4].value
    assert first.pass_at[1].value == pytest.approx(first.average.value)
    assert both.pass_at[1].value == pytest.approx((first.pass_at[1].value + second.pass_at[1].value) / 2)


def test_two_models_are_compared_task_by_task(suite: Suite, tiny_dir: Path) -> None:
    judge = InProcess(build_source(suite.sources))
    answered = measure_suite(load(tiny_dir), suite, judge, lambda *_: None)
    apart = differences(suite, answered, answered)
    assert {name: d.p_value for name, d in apart.items()} == {"first": 1.0, "second": 1.0, "all": 1.0}
    results = [results_of(suite, answered)] * 2
    told = json.loads(to_json([tiny_dir, tiny_dir], suite, results, apart))
    assert told["differences"]["all"]["mean"]["value"] == 0.0
    assert told["models"][1]["results"][2]["pass_at"]["4"]["value"] > 0
    assert table_of([tiny_dir, tiny_dir], suite, results, apart).row_count == 3


def test_rows_are_sources_their_levels_levels_of_all_and_all() -> None:
    rows = groups_of(BUILT_IN["arithmetic"], ["chain_sum@0", "chain_sum@1", "products@0", "products@1", "products@1"])
    assert rows == {
        "chain_sum@0": [0],
        "chain_sum@1": [1],
        "products@0": [2],
        "products@1": [3, 4],
        "chain_sum": [0, 1],
        "products": [2, 3, 4],
        "difficulty 0": [0, 2],
        "difficulty 1": [1, 3, 4],
        "all": [0, 1, 2, 3, 4],
    }
    assert groups_of(BUILT_IN["words"], ["3 letters", "3 letters"]) == {"3 letters": [0, 1]}


def test_a_small_table_is_asked_once_and_its_parts_have_rows(tmp_path: Path, tiny_dir: Path) -> None:
    table = tmp_path / "few.jsonl"
    lines = [{"question": f"{n}?", "answer": "x", "split": "test"} for n in range(5)]
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rewards = [RewardConfig(kind="exact"), RewardConfig(kind="format", weight=0.5)]
    few = TaskConfig(source=f"file/{table}", rewards=rewards)
    suite = Suite(name="few", sources=[few], tasks=100, samples=2, max_new_tokens=3, max_prompt_tokens=8)
    judge = InProcess(build_source(suite.sources))
    (result,) = results_of(suite, measure_suite(load(tiny_dir), suite, judge, lambda *_: None))
    assert result.tasks == 5
    assert result.parts["format"].value > result.parts["exact"].value == 0.0
    shown = Console(file=io.StringIO(), width=200, record=True)
    shown.print(table_of([tiny_dir], suite, [[result]], {}))
    assert "  format" in shown.export_text()


def test_a_model_is_no_better_than_itself_and_what_was_asked_is_told(tmp_path: Path, tiny_dir: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    path = tmp_path / "odd.toml"
    path.write_text(f'tasks = 8\nmax_new_tokens = 4\n[[sources]]\nsource = "python/{tmp_path}/odd.py"\n')
    told = io.StringIO()
    evaluate_suite([tiny_dir, tiny_dir], find_suite(str(path)), "float32", True, Console(file=told))
    found = json.loads(told.getvalue())
    assert found["sources"][0]["sha256"]
    assert found["differences"]["odd"] == {"mean": {"value": 0.0, "low": 0.0, "high": 0.0}, "p_value": 1.0}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_suites_ask_held_out_tasks_without_a_network(name: str) -> None:
    for line in split_up(BUILT_IN[name].sources):
        task = build_source([line]).task("heldout", 0)
        assert task.prompt


def test_a_suite_of_ones_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('tasks = 5\n[[sources]]\nsource = "reasoning-gym/chain_sum"\ndifficulty = [0, 3]\n')
    suite = find_suite(str(path))
    assert (suite.name, suite.tasks) == ("mine", 5)
    assert [line.name for line in split_up(suite.sources)] == ["chain_sum@0", "chain_sum@3"]


@pytest.mark.parametrize(
    ("text", "says"), [(None, "not one of words"), ("tasks = 0", "sources: Field required"), ("x = ", "not valid TOML")]
)
def test_a_suite_that_is_none_is_named(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        find_suite("nothing" if text is None else str(path))


def test_answers_that_no_scorer_could_judge_are_told_beside_the_table() -> None:
    """They count as wrong, which a table alone would not tell from answers that are."""
    right, lost = Score(1.0), Score(None, "tests cannot\nbe read")
    tasks = [Task(name, index, "?", None, {}) for name, index in (("a", 0), ("a", 3), ("b", 0))]
    scores = ([right, right], [right, lost], [right, right])
    answered = [Answered(task, own, [1, 1]) for task, own in zip(tasks, scores, strict=True)]
    said = "1 of 4 answers could not be scored and count as wrong; the first, to task 3: tests cannot be read"
    assert failures(answered) == [f"a: {said}"]
    assert failures(answered[2:]) == []
