"""The files of a run's tasks reach every node that joins, unchanged, and nothing else of either machine does."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.config import TaskConfig
from shoal.errors import SwarmError, TaskError, WaitError
from shoal.roles.session import join_run
from shoal.rundir import RunDir
from shoal.tasks.build import build_source, pinned
from shoal.tasks.files import place_of
from shoal.tasks.source import score
from tests.support.coordinator_in_process import World, world_at

CODE = (
    "def task(n):\n    return {'question': f'{n}?', 'answer': str(n)}\n\n\ndef score(entry, answer):\n    return 1.0\n"
)


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine of a run's owner, with a table and a file of code."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "owner" / "cache"))
    (tmp_path / "owner").mkdir()
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(30)]
    (tmp_path / "owner" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "owner" / "mine.py").write_text(CODE)
    return tmp_path / "owner"


def lines(*tasks: dict[str, Any]) -> list[dict[str, Any]]:
    found = pinned([TaskConfig.model_validate(task) for task in tasks])
    return [task.model_dump(mode="json", exclude_none=True) for task in found]


def join(world: World, path: Path, monkeypatch: pytest.MonkeyPatch, *, code: bool = False) -> RunDir:
    """Joins from a machine that has nothing."""
    monkeypatch.setenv("SHOAL_CACHE", str(path / "cache"))
    return join_run(world.url, path / "key", path / "home", 5.0, lambda _: None, code=code)


def test_who_joins_has_the_tasks_of_a_table_that_lies_elsewhere(
    owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = owner / "sums.jsonl"
    tasks = lines({"source": f"file/{table}", "reward": "exact"})
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world:
        table.unlink()
        run = join(world, tmp_path / "node", monkeypatch)
        source = build_source(run.config.tasks)
        task = source.task("train", 4)
        assert task.prompt.endswith("?")
        assert score(source, task, str(task.entry["answer"])).reward == 1.0
        kept = place_of(tasks[0]["files"][str(table)], table.name)
        assert kept.is_relative_to(tmp_path / "node")
        written = kept.stat().st_mtime_ns
        join(world, tmp_path / "node", monkeypatch)
        assert kept.stat().st_mtime_ns == written, "what is here is not fetched again"


def test_code_is_neither_fetched_nor_run_unless_its_reader_says_so(
    owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = lines({"source": f"python/{owner / 'mine.py'}"})
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world:
        with pytest.raises(TaskError, match=r"run code of others, python/.*mine\.py.*--allow-code"):
            join(world, tmp_path / "node", monkeypatch)
        assert not (tmp_path / "node" / "cache").exists()
        assert not (tmp_path / "node" / "home").exists()
        run = join(world, tmp_path / "node", monkeypatch, code=True)
        assert build_source(run.config.tasks).task("train", 0).prompt.endswith("?")


def test_a_card_that_would_have_this_machines_files_read_is_not_joined(
    owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [{"source": f"file/{owner / 'sums.jsonl'}", "reward": "exact"}]
    with (
        world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world,
        pytest.raises(TaskError, match="gives no hash"),
    ):
        join(world, tmp_path / "node", monkeypatch)


def test_nothing_but_the_runs_own_task_files_is_given_out(owner: Path, tmp_path: Path) -> None:
    table = owner / "sums.jsonl"
    tasks = lines({"source": f"file/{table}", "reward": "exact"})
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world:
        sha256 = tasks[0]["files"][str(table)]
        answer = httpx2.get(f"{world.url}/v1/tasks/{sha256}")
        assert hashlib.sha256(answer.content).hexdigest() == sha256
        other = hashlib.sha256((owner / "mine.py").read_bytes()).hexdigest()
        for name in (other, "0" * 64, "..%2f..%2fetc%2fpasswd", "sums.jsonl", ""):
            assert httpx2.get(f"{world.url}/v1/tasks/{name}").status_code in (404, 422)


def test_a_file_that_is_not_what_was_announced_is_not_kept(
    owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = owner / "sums.jsonl"
    tasks = lines({"source": f"file/{table}", "reward": "exact"})
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world:
        kept = place_of(tasks[0]["files"][str(table)], table.name)
        kept.write_bytes(kept.read_bytes().replace(b"+", b"-"))
        monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "node" / "cache"))
        with pytest.raises(WaitError, match="bytes came, with hash"):
            join_run(world.url, tmp_path / "key", tmp_path / "home", 1.0, lambda _: None, code=False)
        assert list((tmp_path / "node" / "cache" / "tasks").iterdir()) == []


def test_files_without_end_are_not_taken(owner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = owner / "sums.jsonl"
    tasks = lines({"source": f"file/{table}", "reward": "exact"})
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tasks=tasks) as world:
        monkeypatch.setattr("shoal.roles.session.MAX_BYTES", 100)
        with pytest.raises(SwarmError, match="larger than the 100 bytes"):
            join(world, tmp_path / "node", monkeypatch)
