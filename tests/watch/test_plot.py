import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ShoalError, StorageError
from shoal.watch.plot import BLUE, ORANGE, SKY, plot_run, running_mean

from .conftest import append


def pixels(png: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(png)[..., :3] * 255).astype(int)


def count(image: np.ndarray, color: str) -> int:
    rgb = [int(color[index : index + 2], 16) for index in (1, 3, 5)]
    return int((image == rgb).all(axis=-1).sum())


def test_the_picture_of_a_run_shows_curves_in_every_panel(run_dir: Path, tmp_path: Path) -> None:
    plot_run(run_dir, tmp_path / "curves.png")
    image = pixels(tmp_path / "curves.png")
    assert image.shape == (800, 1200, 3)
    for rows in (slice(60, 320), slice(380, 540), slice(590, 750)):
        for columns in (slice(0, 400), slice(400, 800), slice(800, 1200)):
            assert count(image[rows, columns], BLUE) > 100
    assert count(image, ORANGE) > 500
    assert count(image, SKY) > 500


def test_a_run_with_holes_in_its_numbers_is_drawn(tmp_path: Path) -> None:
    append(
        tmp_path / "metrics/trainer.jsonl",
        {"event": "step", "step": 0, "reward": -0.5, "kl": 0.0},
        {"event": "step", "step": 1, "reward": None, "kl": None},
    )
    append(tmp_path / "metrics/evaluator.jsonl", {"event": "eval", "version": 0, "pass_at_1": 0.4})
    plot_run(tmp_path, tmp_path / "curves.png")
    assert count(pixels(tmp_path / "curves.png"), ORANGE) > 20


def test_a_run_that_measured_nothing_is_drawn_without_curves(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    plot_run(tmp_path, tmp_path / "curves.png")
    image = pixels(tmp_path / "curves.png")
    assert count(image, BLUE) == 0
    assert count(image, "#ffffff") < image.shape[0] * image.shape[1]


def test_a_directory_that_is_no_run_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="not a run"):
        plot_run(tmp_path, tmp_path / "curves.png")


def test_a_picture_that_cannot_be_written_is_a_storage_error(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/curves\.png"):
        plot_run(run_dir, tmp_path / "nowhere/curves.png")


def test_a_running_mean_keeps_gaps_and_the_mean_of_a_line() -> None:
    values = [float(value) for value in range(60)]
    assert running_mean(values)[2:-2] == values[2:-2]
    values[30] = float("nan")
    assert np.isnan(running_mean(values)).tolist() == [index == 30 for index in range(60)]


def test_watching_costs_no_heavy_import() -> None:
    modules = "shoal.watch.view, shoal.watch.plot, shoal.watch.summary, shoal.watch.show"
    script = f"import sys, {modules}; print(sorted({{'torch', 'matplotlib', 'numpy', 'pydantic'}} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
