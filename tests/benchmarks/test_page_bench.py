"""The benchmark of the pages: its parts give figures, and its viewers do what an open page does."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import ROOT
from benchmarks.common.progress import Progress
from benchmarks.page.bench import BARS, _paints
from shoal.errors import BenchError
from shoal.page.source import RunFiles
from tests.support.browser import find_chromium
from tests.support.large_run import append_step, write_large_run
from tests.support.page_in_process import serving_pages


def test_paint_times_sizes_and_new_steps_are_measured(tmp_path: Path) -> None:
    try:
        find_chromium()
    except BenchError as error:
        pytest.skip(str(error))
    found = _paints(tmp_path, True, Progress(Console(quiet=True)))
    assert set(found) == set(BARS) - {"wall_with_pages"}
    assert 50_000 < int(found["bytes_per_page"]) <= 150_000
    assert all(0 < float(value) < 60 for name, value in found.items() if name.endswith("_s"))


def test_viewers_hold_streams_and_fetch_the_run_at_each_new_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(files: RunFiles) -> dict[str, object]:
        asked.append(files.history.steps_done)
        return {"done": files.history.steps_done}

    monkeypatch.setattr("shoal.page.data_routes.run_document", counted)
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=128, answer_bytes=100)
    with serving_pages(run) as url:
        command = [sys.executable, "-m", "benchmarks.page.viewers", url.rpartition(":")[2], "5"]
        viewers = subprocess.Popen(command, cwd=ROOT)
        try:
            _until(lambda: len(asked) == 1)
            append_step(run, 3)
            _until(lambda: len(asked) == 2)
            time.sleep(0.5)
            assert viewers.poll() is None
            assert len(asked) == 2, "made once per step, however many look"
        finally:
            viewers.terminate()
            viewers.wait()


def _until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
