"""Tasks in the format that INTELLECT-2's were released in: read as they are, judged row by row, filtered by a rate."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from shoal.config import SolveRateConfig, TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source, pinned
from shoal.tasks.isolation.sandbox import find_bubblewrap
from shoal.tasks.package_versions import packages_of
from shoal.tasks.rewards.combine import runs_programs
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Task, TaskSource, score, size_of

RATE = "solve_rate_qwen_r1_distill_7b"
THOUGHT = "I think.</think>\n"


def math_row(number: int, truth: object, **more: Any) -> dict[str, Any]:
    return {
        "problem_id": f"vfm_{number}",
        "task_type": "verifiable_math",
        "prompt": f"What is {number} + {number}? Put the answer in \\boxed{{}}.",
        "verification_info": json.dumps({"ground_truth": truth}),
        RATE: number / 10,
        "solve_rate_qwq_32b": None,
        **more,
    }


def code_row(tests: object, **more: Any) -> dict[str, Any]:
    return {
        "problem_id": "prc_1",
        "task_type": "prime_rl_code",
        "prompt": f"Solve it, {json.dumps(tests)[:40]}.",
        "verification_info": json.dumps({"test_cases": json.dumps(tests)}),
        RATE: 0.25,
        **more,
    }


def line(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> TaskConfig:
    path = folder / "released.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TaskConfig(source=f"file/{path}", **{"reward": "row", **changes})


def tasks_of(source: TaskSource) -> list[Task]:
    return [source.task(split, index) for split in ("train", "heldout") for index in range(size_of(source, split) or 0)]


@pytest.fixture
def _sandbox() -> None:
    try:
        find_bubblewrap()
    except TaskError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_sandbox")
def test_jsonl_and_parquet_are_read_as_they_are_and_are_the_same_tasks(tmp_path: Path) -> None:
    rows = [math_row(n, str(2 * n)) for n in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "released.parquet")
    first = build_source([line(tmp_path, rows)])
    second = build_source([TaskConfig(source=f"file/{tmp_path / 'released.parquet'}", reward="row")])
    assert [task.prompt for task in tasks_of(first)] == [task.prompt for task in tasks_of(second)]
    assert {task.prompt for task in tasks_of(first)} == {row["prompt"] for row in rows}
    assert all(task.answer == str(2 * int(task.prompt.split()[2])) for task in tasks_of(first))


@pytest.mark.usefixtures("_sandbox")
def test_each_row_is_judged_by_its_own_type_in_a_confined_process(tmp_path: Path) -> None:
    stdin = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    called = {"inputs": ["[1, 2]\n3", "[5]\n0"], "outputs": ["[1, 2, 3]", "[5, 0]"], "fn_name": "joined"}
    rows = [
        math_row(1, "\\boxed{\\frac{1}{2}}", split="train"),
        math_row(2, ["4", "\\text{four}"], split="train"),
        code_row(stdin, split="train"),
        code_row(called, split="train"),
    ]
    asked = [
        (0, f"{THOUGHT}\\boxed{{0.5}}", 1.0),
        (0, f"{THOUGHT}\\boxed{{0.25}}", 0.0),
        (0, "\\boxed{0.5}", 0.0),  # the thinking part is not closed
        (0, f"{THOUGHT}0.5", 0.0),
        (1, f"{THOUGHT}\\boxed{{4}}", 1.0),
        (1, f"{THOUGHT}\\boxed{{four}}", 1.0),
        (1, f"{THOUGHT}\\boxed{{5}}", 0.0),
        (2, f"{THOUGHT}```python\nprint(sum(map(int, input().split())))\n```", 1.0),
        (2, f"{THOUGHT}```python\nprint(3)\n```", 0.0),
        (3, f"{THOUGHT}```python\ndef joined(xs, x):\n    return xs + [x]\n```", 1.0),
        (3, f"{THOUGHT}```python\ndef joined(xs, x):\n    return xs\n```", 0.0),
    ]
    config = pinned([line(tmp_path, rows, prefill="<think>\n", system="Think first.")])
    assert runs_programs(config)
    assert "math-verify" in packages_of(config)
    with Scorer(config) as judge:
        tasks = [judge.tasks.task("train", number) for number in range(4)]
        found = judge.scores("train", [(tasks[number], answer) for number, answer, _ in asked])
    assert {(task.system, task.prefill) for task in tasks} == {("Think first.", "<think>\n")}
    assert [one.error for one in found] == [""] * len(asked)
    assert [one.reward for one in found] == [reward for *_, reward in asked]


@pytest.mark.usefixtures("_sandbox")
def test_a_solve_rate_says_which_rows_are_trained_on_and_leaves_held_out_ones(tmp_path: Path) -> None:
    rows = [math_row(n, n, split="test" if n % 2 else "train") for n in range(10)]
    rows += [math_row(n, n, split="train", **{RATE: None}) for n in range(20, 22)]
    wanted = SolveRateConfig(column=RATE, min=0.2, max=0.6)
    source = build_source([line(tmp_path, rows, solve_rate=wanted)])
    assert [task.entry[RATE] for task in tasks_of(source)[:3]] == [0.2, 0.4, 0.6]
    assert size_of(source, "train") == 3
    assert size_of(source, "heldout") == 5
    assert "solve_rate_qwq_32b" not in source.task("train", 0).entry


@pytest.mark.usefixtures("_sandbox")
def test_rates_of_a_csv_file_are_text_that_says_a_number(tmp_path: Path) -> None:
    rows = [math_row(n, n, split="train") for n in range(10)] + [math_row(11, 11, split="train", **{RATE: "NaN"})]
    with (tmp_path / "released.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    wanted = SolveRateConfig(column=RATE, min=0.2, max=0.6)
    source = build_source([TaskConfig(source=f"file/{file.name}", reward="row", solve_rate=wanted)])
    assert [task.entry[RATE] for task in tasks_of(source)] == ["0.2", "0.3", "0.4", "0.5", "0.6"]


@pytest.mark.usefixtures("_sandbox")
def test_a_rate_that_is_not_there_or_keeps_nothing_is_named(tmp_path: Path) -> None:
    rows = [math_row(n, n, split="train") for n in range(5)]
    with pytest.raises(TaskError, match=f"no row has 'solve_rate_x', .* columns like it: {RATE}"):
        build_source([line(tmp_path, rows, solve_rate=SolveRateConfig(column="solve_rate_x"))])
    with pytest.raises(TaskError, match=f"none of 5 rows has a {RATE} within 0.9..1; widen it"):
        build_source([line(tmp_path, rows, solve_rate=SolveRateConfig(column=RATE, min=0.9, max=1.0))])
    rows[0][RATE] = "often"
    with pytest.raises(TaskError, match=f"{RATE} 'often' is not a number"):
        build_source([line(tmp_path, rows, solve_rate=SolveRateConfig(column=RATE))])
    with pytest.raises(ValidationError, match=r"min = 0\.5 is above max = 0\.25; no row would be left"):
        SolveRateConfig(column=RATE, min=0.5, max=0.25)
    with pytest.raises(TaskError, match="solve_rate filters tables; only file/PATH and dataset/NAME have it"):
        build_source([TaskConfig(source="reasoning-gym/chain_sum", solve_rate=SolveRateConfig(column=RATE))])


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task_type": "kernelbench"}, "row 0: task_type 'kernelbench' has no reward here, known: verifiable_math"),
        ({"verification_info": "{"}, "row 0: verification_info holds '{', which is not valid JSON"),
        ({"verification_info": "[]"}, "row 0: verification_info \\[\\] is not a JSON object"),
        ({"verification_info": "{}"}, "row 0: verification_info has no ground_truth: {}"),
        ({"task_type": "prime_rl_code"}, "row 0: verification_info has no test_cases with inputs and outputs"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, "row 0: prompt .* is neither text nor a user turn"),
        ({"verification_info": '{"ground_truth": [null]}'}, "row 0: ground_truth None is neither text nor a number"),
        ({"verification_info": '{"ground_truth": ["1", ["2"]]}'}, r"row 0: ground_truth \['2'\] is neither text nor"),
        ({"verification_info": '{"ground_truth": {}}'}, "row 0: ground_truth {} is neither text nor a number"),
        ({"verification_info": '{"ground_truth": true}'}, "row 0: ground_truth True is neither text nor a number"),
        ({"verification_info": '{"ground_truth": NaN}'}, "row 0: ground_truth nan is neither text nor a number"),
        ({"verification_info": '{"ground_truth": "\\ud800"}'}, "row 0: verification_info holds .* not valid JSON"),
        ({"verification_info": json.dumps('{"ground_truth": 1}')}, "row 0: verification_info .* is not a JSON object"),
        ({"verification_info": "[" * 100_000}, "row 0: verification_info holds .* not valid JSON"),
        ({"verification_info": None}, "row 0 has no 'verification_info', which tasks of INTELLECT-2's format have"),
        ({"prompt": None, "task_type": None}, "row 0 has no 'prompt' and no 'task_type', which tasks of INTELLECT-2's"),
    ],
)
def test_a_row_that_cannot_be_asked_or_judged_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError, match=said):
        build_source([line(tmp_path, [math_row(1, "2") | changes])])


@pytest.mark.usefixtures("_sandbox")
def test_turns_come_from_the_row_or_from_the_config_and_reach_every_task(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    rows = [math_row(1, "2", prompt=turns, split="train")]
    source = build_source([line(tmp_path, rows)])
    assert (source.task("train", 0).system, source.task("train", 0).prompt) == ("Be brief.", "1 + 1?")
    config = line(tmp_path, rows, system="Think first.", prefill="<think>\n")
    task = build_source([config]).task("train", 0)
    assert (task.system, task.prompt, task.prefill) == ("Think first.", "1 + 1?", "<think>\n")
    assert task.answer == "</think>\n2", "a worked answer goes on where the prefill ends"


def test_rows_with_a_type_and_no_reward_are_told_of_one(tmp_path: Path) -> None:
    source = build_source([line(tmp_path, [math_row(1, "2", split="train")], reward=None)])
    found = score(source, source.task("train", 0), "2")
    assert found.reward is None
    assert "row (for rows with a task_type)" in found.error


@pytest.mark.usefixtures("_sandbox")
def test_the_reward_of_a_row_needs_rows_that_have_one(tmp_path: Path) -> None:
    source = build_source([line(tmp_path, [{"question": "1 + 1?", "answer": "2", "split": "train"}])])
    assert "has no verification_info; reward row is for rows" in score(source, source.task("train", 0), "2").error
