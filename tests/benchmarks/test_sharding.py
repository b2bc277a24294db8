"""`python -m benchmarks sharding`: sections are found, and their figures do not hide each other."""

import importlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.run import find_benchmark
from benchmarks.training.sharding import SECTIONS, bench_sharding
from benchmarks.weights import sharded_files
from shoal.errors import BenchError
from shoal.models.weights import read_weights


def test_it_is_found_by_name_and_finds_its_sections() -> None:
    assert find_benchmark("sharding") is bench_sharding
    for module, function in SECTIONS.values():
        assert callable(getattr(importlib.import_module(f"benchmarks.{module}"), function))


def test_both_sides_publish_and_fetch_the_same_weights() -> None:
    with Progress(Console(file=io.StringIO())) as progress:
        result = sharded_files.bench_files(True, progress)
    assert result.ratios.keys() == {"publish", "fetch"}
    sides = [f"{side}_{kind}_s" for side in ("single", "several") for kind in ("publish", "fetch")]
    assert all(float(result.values[name]) > 0 for name in sides)


def test_weights_that_come_back_changed_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(folder: Path, dtype: str) -> object:
        found = read_weights(folder, dtype)
        next(iter(found.values()))[0] += 1
        return found

    monkeypatch.setattr(sharded_files, "read_weights", wrong)
    with Progress(Console(file=io.StringIO())) as progress, pytest.raises(BenchError, match="gives other weights"):
        sharded_files.bench_files(True, progress)
