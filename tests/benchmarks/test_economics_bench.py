"""The bench runs, meets its bars, and has the names that others read; the figure can be drawn."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.validation.economics import FAKES, SHAPES, bench_economics
from benchmarks.validation.economics_plot import draw


def test_the_economics_bench_shows_a_loss_for_every_share() -> None:
    with Progress(Console(file=io.StringIO())) as progress:
        result = bench_economics(True, progress)
    values = json.loads(result.to_json())["values"]
    assert result.met("worst_gain")
    assert result.met("recomputed_tokens")
    assert all(values[f"gain_{shape}.{fakes}"] < 0 for shape in SHAPES for fakes in FAKES)
    assert max(values[f"before.gain_slow.{fakes}"] for fakes in FAKES) > 0


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "economics.png")
    assert (tmp_path / "economics.png").stat().st_size > 1000
