"""Files of tasks go with the run: by their hash, to every node that joins, and never to other files of its machine."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source, files_of, pinned
from shoal.tasks.files import MAX_BYTES, check_foreign, held, keep, keep_bytes, named, place_of
from shoal.tasks.source import score
from shoal.tasks.sources.filtered import layers, read_header
from shoal.tasks.untrusted import try_tasks

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(30)]
CODE = (
    "def task(n):\n    return {'question': f'{n}?', 'answer': str(n)}\n\n\ndef score(entry, answer):\n    return 1.0\n"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_pinned_source_outlives_its_file(table: Path) -> None:
    (line,) = pinned([TaskConfig(source=f"file/{table}", reward="exact")])
    assert line.files == {str(table): sha256(table)}
    before = build_source([line]).task("train", 5).prompt
    table.unlink()
    assert build_source([line]).task("train", 5).prompt == before


def test_a_file_that_was_changed_is_not_taken_for_the_one_that_was_pinned(table: Path, own_cache: Path) -> None:
    (line,) = pinned([TaskConfig(source=f"file/{table}", reward="exact")])
    table.write_text('{"question": "another?", "answer": "1"}\n')
    assert build_source([line]).task("train", 0).prompt != "another?"
    kept = place_of(line.files[str(table)], table.name)
    kept.write_text(table.read_text())
    with pytest.raises(TaskError, match="is neither there nor in"):
        build_source([line])
    assert kept.is_relative_to(own_cache)


def test_what_is_kept_twice_is_kept_once_and_damage_is_mended(table: Path) -> None:
    first = keep(table)
    place_of(first, table.name).write_text("damaged")
    assert keep(table) == first
    assert sha256(place_of(first, table.name)) == first


def test_a_users_own_code_and_rewards_are_pinned_too(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(CODE)
    rewards: list[Any] = [{"kind": f"python/{code}:score"}, {"kind": "format"}]
    (line,) = pinned([TaskConfig(source=f"python/{code}", rewards=rewards)])
    assert named(line) == [str(code)]
    code.write_text("raise RuntimeError('not this one')")
    source = build_source([line])
    assert score(source, source.task("train", 0), "x").reward == 2.0


def test_a_dataset_becomes_a_table_that_goes_along(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"problem": r["question"], "solution": r["answer"]} for r in ROWS]).save_to_disk(
        str(tmp_path / "data")
    )
    asked = TaskConfig(
        source=f"dataset/{tmp_path / 'data'}", columns={"question": "problem", "answer": "solution"}, reward="exact"
    )
    (line,) = pinned([asked])
    assert (line.source, line.name, line.columns) == ("file/data.jsonl", "data", {})
    assert build_source([line]).task("train", 3).prompt == build_source([asked]).task("train", 3).prompt
    check_foreign([line], "run card", code=False)


def test_all_files_behind_what_was_filtered_go_along(table: Path, tmp_path: Path) -> None:
    (line,) = pinned([TaskConfig(source=f"file/{table}", reward="exact")])
    head: dict[str, Any] = {
        "format": "shoal filter 1",
        "tasks": [line.model_dump(mode="json", exclude_defaults=True)],
        "model": "m",
    }
    head |= {"samples": 8, "keep": [0.1, 0.5], "temperature": 1.0, "seed": 0}
    rated = {"index": 3, "verdict": "kept", "solved": 2, "samples": 8, "rate": 0.25, "low": 0.1, "high": 0.5}
    kept = tmp_path / "kept.jsonl"
    kept.write_text(json.dumps(head) + "\n" + json.dumps(rated) + "\n")
    lines = pinned([TaskConfig(source=f"filtered/{kept}")])
    assert set(files_of(lines)) == {sha256(table), sha256(kept)}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"source": "file//etc/passwd"}, "gives no hash of /etc/passwd"),
        ({"source": "filtered/x", "files": {"y": "0" * 64}}, "gives no hash of x"),
        ({"source": "dataset/json", "options": {"data_files": "/etc/passwd"}}, "gives no hash of it"),
        ({"source": "python/os", "reward": "exact"}, "run code of others, python/os"),
        ({"source": "verifiers/gsm8k"}, "run code of others, verifiers/gsm8k"),
        ({"source": "reasoning-gym/chain_sum", "reward": "python/os:system"}, "run code of others, python/os"),
        ({"source": "reasoning-gym/chain_sum", "rewards": [{"kind": "python/a.py:f"}]}, "no hash of a.py"),
    ],
)
def test_a_strangers_tasks_get_nothing_of_this_machine(line: dict[str, Any], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        check_foreign([TaskConfig.model_validate(line)], "run card of x", code=False)


def test_code_runs_for_who_has_said_so() -> None:
    check_foreign([TaskConfig(source="python/os", reward="exact")], "run card of x", code=True)


HEAD = {"format": "shoal filter 1", "model": "m", "samples": 8, "keep": [0.1, 0.5], "temperature": 1.0, "seed": 0}


def filtered_often(times: int, lines: int) -> TaskConfig:
    """A line that stands for `lines ** times` others, in files of a few hundred bytes."""
    line: dict[str, Any] = {"source": "reasoning-gym/chain_sum"}
    for _ in range(times):
        sha256 = keep_bytes(json.dumps(HEAD | {"tasks": [line] * lines}).encode(), "x.jsonl")
        line = {"source": "filtered/x.jsonl", "files": {"x.jsonl": sha256}}
    return TaskConfig.model_validate(line)


@pytest.mark.parametrize(("times", "lines", "why"), [(7, 10, "more than 1024 sources"), (9, 1, "more than 7 times")])
def test_what_was_filtered_does_not_unfold_without_end(times: int, lines: int, why: str) -> None:
    began = time.process_time()
    with pytest.raises(TaskError, match=why):
        list(layers([filtered_often(times, lines)], "run card of x"))
    assert time.process_time() - began < 5
    assert len(list(layers([filtered_often(2, 3)], "run card of x"))) == 3


def test_the_head_of_a_filtered_file_is_not_read_without_end(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(TaskError, match="not a file of shoal filter"):
        read_header(path)


def test_tables_that_unfold_to_gigabytes_are_found_out_in_a_process_of_their_own(tmp_path: Path) -> None:
    packed = pa.DictionaryArray.from_arrays(pa.array([0] * 2_000_000, pa.int32()), pa.array(["x" * 2000]))
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"question": packed}), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    line = TaskConfig(source=f"file/{path}", reward="exact", files={str(path): keep(path)})
    with pytest.raises(TaskError, match="run card of x: its tasks cannot be made with 2 GiB of memory"):
        try_tasks([line], "run card of x")


def test_options_that_take_for_ever_are_found_out_too(table: Path) -> None:
    endless = TaskConfig(source="reasoning-gym/chain_sum", options={"min_terms": 10**12, "max_terms": 10**12})
    with pytest.raises(TaskError, match=r"not made within 6 s|cannot be made with"):
        try_tasks([endless], "run card of x", seconds=6.0)
    (line,) = pinned([TaskConfig(source=f"file/{table}", reward="exact")])
    try_tasks([line], "run card of x")
    with pytest.raises(TaskError, match=r"run card of x: task source reasoning-gym/chain_sum: options .* refused"):
        try_tasks([TaskConfig(source="reasoning-gym/chain_sum", options={"min_terms": -1})], "run card of x")


@pytest.mark.parametrize("name", ["../../x.jsonl", "/x.py", "a\0b", "x" * 5000, ""])
def test_no_name_leads_out_of_the_cache(name: str, own_cache: Path) -> None:
    assert place_of("0" * 64, name).parent == own_cache / "tasks"
    with pytest.raises(TaskError, match="which the run was made with"):
        held(name, {name: "0" * 64})


def test_a_hash_that_is_none_is_refused_by_the_config() -> None:
    with pytest.raises(ValueError, match="files"):
        TaskConfig(source="file/x.jsonl", files={"x.jsonl": "../../../etc/passwd"})


def test_a_file_too_large_for_strangers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TaskError, match="are the most"):
        keep(path)
