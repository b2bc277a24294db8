"""The benchmarks of action models: equal sides, meters that see what they should, and conclusions as documented."""

import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.fbam import depth, length_law, streaming
from benchmarks.fbam.bench import BARS, bench_fbam
from benchmarks.fbam.history import make_history
from benchmarks.fbam.jobs import Job, run_jobs
from benchmarks.fbam.length_law import Plan, Side, bench_length_law, conclude, sides_of, slope
from benchmarks.fbam.models import lstm_config, matched_config
from benchmarks.fbam.plot import draw, points
from benchmarks.run import find_benchmark
from shoal.fbam import count_parameters
from shoal.fbam.recording import RecordOptions, record_repository
from shoal.fbam.tasks import Frjt

PLAN = Plan(lengths=(16, 64, 256), seeds=(0, 1, 2))


def test_they_are_found_by_name() -> None:
    assert find_benchmark("fbam") is bench_fbam
    assert find_benchmark("fbam-length") is bench_length_law


@pytest.mark.parametrize(("kind", "layers"), depth.ALL[1:])
def test_models_that_are_compared_have_the_same_head_and_as_many_parameters(kind: str, layers: int) -> None:
    reference = lstm_config(Frjt(), 128)
    other = matched_config(reference, kind, layers)  # type: ignore[arg-type]
    assert count_parameters(other) == pytest.approx(count_parameters(reference), rel=0.1)
    assert (other.head_width, other.shape) == (reference.head_width, reference.shape)


def test_models_that_are_compared_see_the_same_frames() -> None:
    jobs = [depth.LIVE.job(kind, layers, 0, quick=False).settings for kind, layers in depth.ALL]
    seen = {(job.steps, job.batch, job.max_length, job.curriculum_steps, job.seed) for job in jobs}
    assert len(seen) == 1


def test_the_critical_length_ends_at_the_first_miss() -> None:
    assert depth.critical_length({4: 1.0, 2: 0.95, 8: 0.9, 16: 0.5, 32: 0.99}) == 8
    assert depth.critical_length({2: 0.5, 4: 1.0}) == 0


def test_the_gradient_error_is_rounding() -> None:
    assert streaming.gradient_error(torch.float64) <= 1e-10


def test_frames_of_the_pattern_do_not_depend_on_the_chunk_that_is_read() -> None:
    stream = streaming.PatternStream(20)
    parts = [stream.frames(begin, begin + 4) for begin in range(0, 20, 4)]
    assert torch.equal(stream.frames(0, 20), torch.cat(parts, dim=1))
    assert not torch.equal(stream.frames(0, 1), stream.frames(1, 2))


def test_every_bar_names_a_figure_that_is_measured() -> None:
    """A bar without a figure would never be missed; depth's names follow from its contests."""
    trained = {
        f"{short}_{kind}_{length}"
        for short, contest in (("frjt", depth.FRJT), ("live", depth.LIVE), ("s5", depth.S5))
        for kind, _ in depth.ALL
        for length in contest.lengths
    }
    accuracies = {name for name in BARS if name.startswith(("frjt", "live", "s5"))}
    assert accuracies <= trained


def test_a_history_that_is_made_replays_too(tmp_path: Path) -> None:
    options = RecordOptions(max_changes=6)
    recording, report = record_repository(make_history(tmp_path / "made"), tmp_path / "r.jsonl", options)
    assert report.kept == len(recording.changes) > 0


def test_a_training_in_a_process_of_its_own_gives_accuracies_by_length() -> None:
    settings = depth.FRJT.job("lstm", 1, 0, quick=True).settings
    job = Job("one", settings.model_copy(update={"steps": 1}), (2, 3), 16)
    found = run_jobs([job], Progress(Console(quiet=True)))
    assert found["one"].keys() == {2, 3}
    assert all(0 <= accuracy <= 1 for accuracy in found["one"].values())


def test_slopes_and_exponents_are_those_of_a_power_law() -> None:
    assert slope((16, 64, 256), [x**-0.25 for x in (16, 64, 256)]) == pytest.approx(-0.25)
    found = {}
    for side in sides_of(PLAN):
        position = side.length**-0.1 if side.method == "exact" else 0.7
        found[side] = {"raw": side.length**-0.2 + side.seed * 1e-4, "position": position}
    values = conclude(PLAN, found, {}).values
    assert values["exponent_raw"] == pytest.approx(0.2, abs=1e-3)
    assert values["exponent_position"] == pytest.approx(0.1)
    assert values["exponent_raw_excludes_0"] == 1
    assert values["loss_truncated_64"] == pytest.approx(0.7)


def test_a_slope_that_differs_in_sign_from_seed_to_seed_does_not_exclude_0() -> None:
    found = {
        side: dict.fromkeys(("raw", "position"), side.length ** (0.1 * (side.seed - 1))) for side in sides_of(PLAN)
    }
    values = conclude(PLAN, found, {}).values
    assert values["exponent_raw_excludes_0"] == 0
    assert math.isclose(float(values["exponent_raw"]), 0.0, abs_tol=1e-9)


def test_truncated_is_trained_where_it_differs_and_frames_per_step_are_equal() -> None:
    sides = sides_of(length_law.Plan())
    assert Side(16, "truncated", 0) not in sides
    assert len(sides) == 21
    assert {length_law.Plan().frames_per_step % side.length for side in sides} == {0}


def test_figures_are_drawn_from_the_values(tmp_path: Path) -> None:
    accuracies = {"frjt_lstm_16": 1.0, "live_lstm_32": 1.0, "s5_lstm_32": 1.0}
    values = {**accuracies, "critical_lstm_1": 64.0, "critical_transformer_2": 4.0, "full_256_mb": 3.0}
    assert points(values, r"frjt_lstm_(\d+)") == [(16, 1.0)]
    draw(values, tmp_path / "f.png", {"loss_raw_16": 2.0})
    assert (tmp_path / "f.png").stat().st_size > 1000
