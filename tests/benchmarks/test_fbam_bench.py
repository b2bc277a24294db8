"""The benchmarks of action models: equal sides, meters that see what they should, and conclusions as documented."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.fbam import child, depth, jobs, length_law, streaming
from benchmarks.fbam.bench import BARS, bench_fbam
from benchmarks.fbam.history import make_history
from benchmarks.fbam.jobs import Job, run_jobs
from benchmarks.fbam.length_law import Plan, Side, bench_length_law, conclude, sides_of, slope
from benchmarks.fbam.models import lstm_config, matched_config
from benchmarks.fbam.plot import draw_accuracy, draw_cost, points
from benchmarks.fbam.rates import rate_jobs
from benchmarks.run import find_benchmark
from shoal.errors import BenchError
from shoal.fbam import ActionModel, Stream, count_parameters, streamed_gradient
from shoal.fbam.recording import RecordOptions, record_repository
from shoal.fbam.tasks import Frjt
from shoal.fbam.training.trainer import StepReport, Trainer

QUIET = Progress(Console(quiet=True))
PLAN = Plan(lengths=(16, 64, 256), seeds=(0, 1, 2))


def one_step(**changes: object) -> Job:
    settings = depth.FRJT.job(depth.LSTM, 0, quick=True).settings.model_copy(update={"steps": 1, **changes})
    return Job("one", "benchmarks.fbam.train_child", settings, {"lengths": (2, 3), "sequences": 16})


def test_they_are_found_by_name() -> None:
    assert find_benchmark("fbam") is bench_fbam
    assert find_benchmark("fbam-length") is bench_length_law


@pytest.mark.parametrize("model", [*depth.FRJT.models[1:], *depth.LAYERS[1:]])
def test_models_that_are_compared_have_the_same_head_and_as_many_parameters(model: depth.Model) -> None:
    reference = lstm_config(Frjt(), 128)
    other = matched_config(reference, model.kind, model.layers)
    assert count_parameters(other) == pytest.approx(count_parameters(reference), rel=0.1)
    assert (other.head_width, other.shape) == (reference.head_width, reference.shape)


def test_models_that_are_compared_see_the_same_frames() -> None:
    trainings = [depth.LIVE.job(model, 0, quick=False).settings for model in depth.LIVE.models]
    seen = {(one.steps, one.batch, one.max_length, one.curriculum_steps, one.seed) for one in trainings}
    assert len(seen) == 1


def test_the_critical_length_ends_at_the_first_miss() -> None:
    assert depth.critical_length({4: 1.0, 2: 0.95, 8: 0.9, 16: 0.5, 32: 0.99}) == 8
    assert depth.critical_length({2: 0.5, 4: 1.0}) == 0


def test_the_gradient_error_is_rounding() -> None:
    assert streaming.gradient_error(torch.float64) <= 1e-10


def test_the_gradient_error_sees_a_mistake_that_all_chunk_sizes_make(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(model: ActionModel, stream: Stream, chunk: int) -> None:
        streamed_gradient(model, stream, chunk)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 1 + 1e-6

    monkeypatch.setattr(streaming, "streamed_gradient", scaled)
    monkeypatch.setattr(streaming, "CHUNKS", (7, 64))
    monkeypatch.setattr(streaming, "ERROR_LENGTH", 20)
    assert streaming.gradient_error(torch.float64) == pytest.approx(1e-6, rel=1e-3)


def test_frames_of_the_pattern_do_not_depend_on_the_chunk_that_is_read() -> None:
    stream = streaming.PatternStream(20)
    parts = [stream.frames(begin, begin + 4) for begin in range(0, 20, 4)]
    assert torch.equal(stream.frames(0, 20), torch.cat(parts, dim=1))
    assert not torch.equal(stream.frames(0, 1), stream.frames(1, 2))


def test_every_bar_names_a_figure_that_is_measured() -> None:
    """A bar without a figure would never be missed; depth's names follow from its contests."""
    perfect = {
        job.name: dict.fromkeys(map(str, job.questions["lengths"]), 1.0) for job in depth.depth_jobs(quick=False)
    }
    values = depth.conclude_depth(perfect, depth.contests_of(quick=False))
    accuracies = {name for name in BARS if name.startswith(("frjt", "live", "s5", "critical"))}
    assert len(accuracies) > 10
    assert accuracies <= values.keys()


def test_learning_rates_are_tried_on_a_seed_that_is_not_shown() -> None:
    shown = {job.settings.seed for job in depth.depth_jobs(quick=False)}
    tried = rate_jobs()
    assert {job.settings.seed for job in tried}.isdisjoint(shown)
    assert {job.settings.lr for job in tried} >= {job.settings.lr for job in depth.depth_jobs(quick=False)}


def test_the_critical_length_rises_only_if_it_never_falls_and_does_not_stay() -> None:
    assert depth.rises([2, 4, 4, 8]) == 1
    assert depth.rises([4, 4, 4, 4]) == 0
    assert depth.rises([2, 8, 4, 8]) == 0


def test_a_history_that_is_made_replays_too(tmp_path: Path) -> None:
    options = RecordOptions(max_changes=6)
    recording, report = record_repository(make_history(tmp_path / "made"), tmp_path / "r.jsonl", options)
    assert report.kept == len(recording.changes) > 0


def test_a_training_in_a_process_of_its_own_gives_accuracies_by_length() -> None:
    found = run_jobs([one_step()], Parts(None), QUIET)["one"]
    assert found.keys() == {"2", "3", "loss"}
    assert all(0 <= found[length] <= 1 for length in ("2", "3"))


def test_a_training_whose_answer_is_kept_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(module: str, *_: object) -> dict[str, float]:
        asked.append(module)
        return {"2": 0.5}

    monkeypatch.setattr(jobs, "ask_child", ask)
    for _ in range(2):
        assert run_jobs([one_step()], Parts(tmp_path), QUIET) == {"one": {"2": 0.5}}
    assert len(asked) == 1
    run_jobs([one_step(lr=0.123)], Parts(tmp_path), QUIET)
    assert len(asked) == 2, "another learning rate is another training"


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(stop_at: int | None, checkpoint: str | None) -> child.Trained:
        told = {**one_step(steps=5).told(), "checkpoint": checkpoint}
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(told)))

        def step(trainer: Trainer) -> StepReport:
            if trainer.steps_done == stop_at:
                raise KeyboardInterrupt
            return whole_step(trainer)

        monkeypatch.setattr(Trainer, "step", step)
        return child.train_as_told()

    whole_step = Trainer.step
    monkeypatch.setattr(child, "LINE_S", 0.0)
    undisturbed, checkpoint = train(None, None), str(tmp_path / "one.pt")
    with pytest.raises(KeyboardInterrupt):
        train(3, checkpoint)
    resumed = train(None, checkpoint)
    assert resumed.last_loss == undisturbed.last_loss
    pairs = zip(undisturbed.trainer.model.parameters(), resumed.trainer.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_kept_answer_that_is_damaged_is_named(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.keep("one", {"a": 1}, {"2": 0.5})
    (file,) = tmp_path.iterdir()
    file.write_text("{}")
    with pytest.raises(BenchError, match=f"{file.name}: not a part of a benchmark; remove it"):
        parts.find("one", {"a": 1})


def test_a_training_that_fails_says_why() -> None:
    with pytest.raises(BenchError, match=r"benchmarks.nonsense: .*No module named benchmarks.nonsense"):
        run_jobs([replace(one_step(), module="benchmarks.nonsense")], Parts(None), QUIET)


def test_where_a_recording_is_stored_does_not_make_it_another_training(tmp_path: Path) -> None:
    here, there = (one_step(task=None, recording=tmp_path / name, recording_sha256="00") for name in ("a", "b"))
    assert here.asked() == there.asked()
    assert here.told() != there.told()


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
    values = {f"{task}_lstm_{length}": 1.0 for task in ("frjt", "live", "s5") for length in (16, 128)}
    values |= {"frjt_lstm_16_window": 3.0, "critical_lstm_1": 64.0, "critical_transformer_2": 4.0, "full_256_mb": 3.0}
    values |= {"deep_lstm_1_at_2": 1.0, "deep_transformer_8_at_64": 0.1}
    assert points(values, r"frjt_lstm_(\d+)") == [(16, 1.0), (128, 1.0)]
    draw_accuracy(values, tmp_path / "accuracy.png")
    draw_cost(values, {"loss_raw_16": 2.0}, tmp_path / "cost.png")
    assert min(file.stat().st_size for file in tmp_path.iterdir()) > 1000
