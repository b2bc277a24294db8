"""`shoal filter`: rates with intervals, what was dropped and why, a source of its own, and no work done twice."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shoal.config import TaskConfig
from shoal.errors import ConfigError, TaskError
from shoal.evals import worker_pool as chunks
from shoal.evals.answers import Drawing
from shoal.evals.filter import filter_source, histogram, judge_rate, parse_keep, summary
from shoal.tasks.build import build_source
from shoal.tasks.sources.filtered import Header, Rated, read_filtered

ODD = """
def task(index):
    return {"question": f"{index % 400}?"}

def score(entry, answer):
    return float(sum(answer.encode()) % 3 == 0)
"""
DRAWING = Drawing(samples=8, temperature=1.0, max_new_tokens=4, max_prompt_tokens=16)


@pytest.fixture
def header(tmp_path: Path, tiny_dir: Path) -> Header:
    (tmp_path / "odd.py").write_text(ODD)
    return Header([TaskConfig(source=f"python/{tmp_path}/odd.py")], str(tiny_dir), 8, (0.25, 0.5), 1.0, 0)


def run(header: Header, out: Path, count: int = 100, workers: int = 1, drawing: Drawing = DRAWING) -> str:
    told = io.StringIO()
    filter_source(header, drawing, count, out, Console(file=told, width=200), workers)
    return told.getvalue()


def test_tasks_get_their_rates_and_the_rest_is_dropped_with_a_reason(header: Header, tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    told = run(header, out)
    found, rated = read_filtered(out)
    assert found.tasks[0].sha256 is not None
    assert len(rated) == 100
    for one in rated:
        if one.verdict != "duplicate":
            assert one.rate == one.solved / 8
            assert one.low <= one.rate <= one.high
            assert (one.verdict == "kept") == (0.25 <= one.rate <= 0.5)
    assert {one.verdict for one in rated} >= {"kept", "too hard", "too easy", "duplicate"}
    assert f"{sum(one.verdict == 'kept' for one in rated)} of 100 tasks kept; dropped: " in told
    assert out.with_suffix(".txt").read_text() == histogram(rated, 8)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert left == ["kept.jsonl", "kept.png", "kept.txt", "odd.py"]


def test_the_result_is_a_source_of_the_kept_tasks_with_the_same_held_out_ones(header: Header, tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    run(header, out)
    whole, kept = build_source(header.tasks), build_source([TaskConfig(source=f"filtered/{out}")])
    indices = [one.index for one in read_filtered(out)[1] if one.verdict == "kept"]
    assert [kept.task("train", i).prompt for i in range(len(indices))] == [
        whole.task("train", i).prompt for i in indices
    ]
    wrapped = kept.task("train", len(indices) + 1)
    assert wrapped == replace(kept.task("train", 1), index=len(indices) + 1)
    assert [kept.task("heldout", i) for i in range(20)] == [whole.task("heldout", i) for i in range(20)]
    assert kept.score(wrapped, "\x03") == 1.0


def test_a_filter_that_is_stopped_goes_on_and_finds_the_same(
    header: Header, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(header, tmp_path / "whole.jsonl", 200)
    measure = chunks.Measurer.measure
    asked: list[int] = []

    def stops(measurer: chunks.Measurer, chunk: Sequence[int]) -> chunks.Measured:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(chunk[0])
        return measure(measurer, chunk)

    monkeypatch.setattr(chunks.Measurer, "measure", stops)
    out = tmp_path / "stopped.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(header, out, 200)
    assert not out.exists()
    partial = tmp_path / "stopped.jsonl.partial"
    with partial.open("ab") as file:
        file.write(b'{"index": 128, "verd')  # torn
    del asked[:]
    assert "resuming after 128 tasks" in run(header, out, 200)
    assert len(asked) == 2
    assert asked[0] >= 128
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not partial.exists()


MANY = 960  # it is killed after the first of them, long before the last


def test_two_processes_and_one_that_goes_on_after_a_kill_find_what_one_finds(header: Header, tmp_path: Path) -> None:
    run(header, tmp_path / "one.jsonl", MANY)
    out = tmp_path / "two.jsonl"
    code = f"""
import io
from pathlib import Path
from rich.console import Console
from shoal.config import TurnsConfig
from shoal.evals.answers import Drawing
from shoal.evals.filter import filter_source
from shoal.tasks.sources.filtered import Header
header = Header.from_json({header.to_json()!r})
filter_source(header, {DRAWING!r}, {MANY}, Path({str(out)!r}), Console(file=io.StringIO()), workers=2)
"""
    partial = tmp_path / "two.jsonl.partial"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    helpers: set[int] = set()
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        helpers |= children_of(process.pid)
        if partial.exists() and len(partial.read_bytes().splitlines()) > 64:
            break
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not out.exists(), "it was done before it could be killed"
    assert len(helpers) >= 2
    assert gone(helpers), "what a killed filter started goes on without it"
    assert "resuming after " in run(header, out, MANY)
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def children_of(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def is_alive(pid: int) -> bool:
    """Not one that has ended and that nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_fault_in_a_process_that_measures_is_the_commands_own(header: Header, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"max_prompt_tokens = 1: .* takes \d tokens; raise it"):
        run(header, tmp_path / "x.jsonl", 64, workers=2, drawing=replace(DRAWING, max_prompt_tokens=1))


def test_a_filter_goes_on_with_nothing_but_its_own(header: Header, tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    (tmp_path / "kept.jsonl.partial").write_text(replace(header, samples=4).to_json() + "\n")
    with pytest.raises(ConfigError, match="was begun with another source, model or setting"):
        run(header, out)
    out.write_text("x")
    with pytest.raises(ConfigError, match="already exists"):
        run(header, out)


@pytest.mark.parametrize(
    ("solved", "failed", "verdict"),
    [(0, 0, "too hard"), (1, 0, "kept"), (4, 0, "kept"), (5, 0, "too easy"), (0, 8, "failed")],
)
def test_what_becomes_of_a_task(solved: int, failed: int, verdict: str) -> None:
    assert judge_rate(solved, 8, failed, (0.125, 0.5)) == verdict


@pytest.mark.parametrize("text", ["0.5", "a..b", "0.6..0.5", "0..2", "-1..1", ""])
def test_a_range_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--keep {text}: must "):
        parse_keep(text)


def test_tasks_without_end_need_a_number(header: Header, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no end of tasks; give the number to measure with --tasks"):
        filter_source(header, DRAWING, None, tmp_path / "x.jsonl", Console(file=io.StringIO()))


def test_a_file_that_is_no_filters_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"format": "other"}) + "\n")
    with pytest.raises(TaskError, match="not a file of shoal filter"):
        build_source([TaskConfig(source=f"filtered/{tmp_path}/x.jsonl")])
    with pytest.raises(TaskError, match="cannot be read"):
        build_source([TaskConfig(source=f"filtered/{tmp_path}/none.jsonl")])


def test_the_histogram_says_how_many_were_solved_how_often() -> None:
    rated = [Rated(i, "kept", i % 3, 2, i % 3 / 2, 0.0, 1.0) for i in range(9)]
    assert histogram(rated, 2).splitlines()[1:] == [f"{rate:6.1%} {'#' * 40} 3" for rate in (0, 0.5, 1)]
    assert summary(rated) == "9 of 9 tasks kept; dropped: none"
