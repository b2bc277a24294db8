"""Tables as tasks: each question once, held out by its text, named by what it holds."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source, pinned
from shoal.tasks.source import Task, TaskSource, score
from shoal.tasks.sources.table import Rows

SUMS = [{"problem": f"{a}+{a}=", "solution": str(2 * a), "level": a % 3} for a in range(60)]
COLUMNS = {"question": "problem", "answer": "solution"}


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def line(path: Path, **changes: Any) -> TaskConfig:
    return TaskConfig(source=f"file/{path}", columns=COLUMNS, reward="exact", **changes)


def test_jsonl_parquet_and_a_dataset_directory_are_the_same_source(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(SUMS).save_to_disk(str(tmp_path / "saved"))
    pq.write_table(pa.Table.from_pylist(SUMS), tmp_path / "sums.parquet")
    lines = [
        line(jsonl(tmp_path / "sums.jsonl", SUMS), name="sums"),
        line(tmp_path / "sums.parquet", name="sums"),
        TaskConfig(source=f"dataset/{tmp_path / 'saved'}", columns=COLUMNS, reward="exact", name="sums"),
    ]
    first, *others = [[build_source([one]).task("train", i) for i in range(70)] for one in lines]
    assert all(other == first for other in others)
    assert len({line.sha256 for line in pinned(lines)}) == 1
    assert all(task.entry["level"] == int(task.prompt.partition("+")[0]) % 3 for task in first)


def test_csv_has_quoted_cells_over_several_lines_and_empty_ones_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text('\ufeffproblem,solution,level,split\n"1,\n""1""",2,,train\n')
    task = build_source([line(path)]).task("train", 0)
    assert (task.prompt, task.answer) == ('1,\n"1"', "2")
    assert "level" not in task.entry


def test_a_dataset_with_parts_of_its_own_keeps_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(SUMS[:50]), "test": datasets.Dataset.from_list(SUMS[50:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    source = build_source([TaskConfig(source=f"dataset/{tmp_path / 'saved'}", columns=COLUMNS, reward="exact")])
    assert {source.task("heldout", i).prompt for i in range(30)} == {row["problem"] for row in SUMS[50:]}


def test_a_dataset_that_cannot_be_had_is_named() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(TaskError, match="task source dataset/nobody/nothing: cannot be loaded: "):
        build_source([TaskConfig(source="dataset/nobody/nothing", reward="math")])


def test_each_question_is_asked_once_and_never_in_both_splits(tmp_path: Path) -> None:
    source = Rows("sums", [{"question": row["problem"], "answer": row["solution"]} for row in SUMS + SUMS[:7]])
    assert (len(source), source.duplicates) == (60, 7)
    train = [source.task("train", index).prompt for index in range(60)]
    heldout = [source.task("heldout", index).prompt for index in range(60)]
    assert set(train) & set(heldout) == set()
    assert set(train) | set(heldout) == {row["problem"] for row in SUMS}


def test_a_source_whose_content_changed_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "sums.jsonl", SUMS)
    kept = [task.model_copy(update={"files": {}}) for task in pinned([line(path)])]
    build_source(kept)
    jsonl(path, [SUMS[0] | {"solution": "7"}, *SUMS[1:]])
    with pytest.raises(TaskError, match=r"its content has the hash .*, the run was made with .*; put back"):
        build_source(kept)


def test_a_generator_needs_no_hash() -> None:
    [same] = pinned([TaskConfig(source="reasoning-gym/chain_sum")])
    assert same.sha256 is None


def test_the_right_answer_is_paid_where_it_stands(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "sums.jsonl", SUMS)
    source = build_source([line(path, answer="boxed", thinking=True, template="Q: {question}")])
    task = source.task("train", 3)
    known = task.entry["answer"]
    assert task.prompt == f"Q: {task.entry['question']}\nPut the final answer in \\boxed{{}}."
    assert task.answer == f"\\boxed{{{known}}}"
    assert _paid(source, task, f"<think>hm, \\boxed{{1}}</think> \\boxed{{{known}}}")
    assert not _paid(source, task, f"<think>\\boxed{{{known}}}")
    assert not _paid(source, task, f"\\boxed{{{known}}}")
    assert not _paid(source, task, f"<think>\\boxed{{{known}}}</think> no")


def _paid(source: TaskSource, task: Task, answer: str) -> bool:
    return score(source, task, answer).reward == 1.0


@pytest.mark.parametrize(
    ("rows", "changes", "says"),
    [
        ([{"text": "x"}], {}, r"row 0 has no 'problem'; it has text\. Say which column it is: columns"),
        ([{"problem": "x"}], {}, "row 0 has no 'solution'"),
        (SUMS, {"columns": {"prompt": "problem"}}, r"columns name \['prompt'\]; known: question, answer, tests, split"),
        ([], {}, "holds no tasks"),
    ],
)
def test_a_table_that_does_not_fit_is_named(
    rows: list[dict[str, Any]], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    config = line(jsonl(tmp_path / "sums.jsonl", rows)).model_copy(update=changes)
    with pytest.raises(TaskError, match=says):
        build_source([config])


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n[1]\n')
    (tmp_path / "latin.jsonl").write_bytes('{"question": "größe"}\n'.encode("latin-1"))
    (tmp_path / "latin.json").write_bytes('[{"question": "größe"}]'.encode("latin-1"))
    (tmp_path / "bad.parquet").write_text("x")
    (tmp_path / "bad.csv").write_text('problem,solution\n"1" 2,3\n')
    for name, says in [
        ("none.jsonl", r"cannot be read \(No such file"),
        ("latin.jsonl", r"is not UTF-8 text \(.*\); convert it"),
        ("latin.json", r"is not UTF-8 text \(.*\); convert it"),
        ("bad.jsonl", r"line 2 is not a JSON object but '\[1\]'"),
        ("bad.parquet", "is not a valid Parquet file"),
        ("bad.csv", "is not a valid CSV file"),
        ("x.tsv", r"must end in \.jsonl, \.json, \.parquet, \.csv"),
    ]:
        with pytest.raises(TaskError, match=says):
            build_source([line(tmp_path / name)])


def test_a_table_without_held_out_rows_says_what_to_add(tmp_path: Path) -> None:
    source = build_source([line(jsonl(tmp_path / "one.jsonl", [SUMS[0] | {"split": "train"}]))])
    with pytest.raises(TaskError, match="none of its 1 tasks is in the heldout split; add tasks, or a column `split`"):
        source.task("heldout", 0)


def test_a_text_may_hold_what_unicode_calls_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    rows = [{"problem": f"{n}\u2028\x85\u2029?", "solution": "1"} for n in range(20)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows), "utf-8", newline="")
    assert "\u2028\x85\u2029?" in build_source([line(path)]).task("train", 0).prompt
