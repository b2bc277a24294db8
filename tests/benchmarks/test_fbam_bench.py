"""The benchmarks of action models: equal sides, meters that see what they should, and conclusions as documented."""

import importlib
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from rich.console import Console

from benchmarks import ROOT
from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.fbam import bench, child, depth, jobs, length_law, streaming
from benchmarks.fbam.bench import BARS, bench_fbam
from benchmarks.fbam.history import make_history
from benchmarks.fbam.jobs import Job, ask_child, run_jobs
from benchmarks.fbam.length_law import Plan, Side, bench_length_law, conclude, sides_of, slope
from benchmarks.fbam.plot import draw_accuracy, draw_cost, points
from benchmarks.fbam.rates import RATES, rate_job, rate_jobs
from benchmarks.run import find_benchmark
from shoal.errors import BenchError
from shoal.fbam import ActionModel, Stream, count_parameters, streamed_gradient
from shoal.fbam.recording import RecordOptions, record_repository
from shoal.fbam.training.trainer import StepReport, Trainer

QUIET = Progress(Console(quiet=True))
PLAN = Plan(lengths=(16, 64, 256), seeds=(0, 1, 2))


def one_step(**changes: object) -> Job:
    settings = depth.FRJT.job(depth.LSTM, 0, quick=True).settings.model_copy(update={"steps": 1, **changes})
    return Job("one", "benchmarks.fbam.train_child", settings, {"lengths": (2, 3), "sequences": 16})


def test_they_are_found_by_name() -> None:
    assert find_benchmark("fbam") is bench_fbam
    assert find_benchmark("fbam-length") is bench_length_law


CONTESTS = pytest.mark.parametrize(
    "contest", [*depth.contests_of(quick=False).values(), depth.DEEP], ids=lambda one: f"{one.task}-{one.max_length}"
)
# Settings that may differ between models that are compared; all others decide what they see and how they learn.
OWN_SETTINGS = {"model", "lr"}


@CONTESTS
def test_models_that_are_compared_have_the_same_head_and_as_many_parameters(contest: depth.Contest) -> None:
    reference = contest.job(depth.LSTM, 0, quick=False).settings.model
    head = {name: value for name, value in reference if name.startswith(("head", "conv", "shape", "actions"))}
    assert len(head) >= 5
    for model in contest.models:
        other = contest.job(model, 0, quick=False).settings.model
        assert count_parameters(other) == pytest.approx(count_parameters(reference), rel=0.1)
        assert (other.integrator, other.layers) == model
        assert {name: value for name, value in other if name in head} == head


@CONTESTS
def test_models_that_are_compared_see_the_same_frames(contest: depth.Contest) -> None:
    for seed in contest.seeds:
        trainings = [contest.job(model, seed, quick=False).settings for model in contest.models]
        seen = [one.model_dump(exclude=OWN_SETTINGS) for one in trainings]
        assert len(seen) > 1
        assert all(one == seen[0] for one in seen), contest.task
        assert seen[0]["seed"] == seed


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


def test_every_bar_on_accuracy_names_a_figure_of_the_whole_benchmark() -> None:
    """A bar without a figure would never be missed; depth's names follow from its contests. The others' names are
    those of a quick run, below."""
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


def rate_of(contest: depth.Contest, model: depth.Model) -> float:
    """The rate with the lower loss, of those that were tried and kept with the page on action models."""
    parts = Parts(ROOT / "docs" / "fbam")
    losses = {}
    for lr in RATES[model.kind]:
        job = rate_job(contest, model, lr)
        kept = parts.find(job.name, job.asked())
        assert kept is not None, job.name
        losses[lr] = kept["loss"]
    return min(losses, key=lambda lr: losses[lr])


def test_each_model_learns_at_the_rate_that_was_better_when_it_was_tried() -> None:
    """FRJT has the rates of frjt-live, S5 those of the longer contest in it, and every depth that of two layers."""
    for contest, tried in ((depth.FRJT, depth.LIVE), (depth.LIVE, depth.LIVE), (depth.S5, depth.DEEP)):
        assert contest.lrs == {model: rate_of(tried, model) for model in contest.models}
    expected = {
        model: rate_of(depth.DEEP, depth.LSTM if model == depth.LSTM else depth.TRANSFORMER) for model in depth.LAYERS
    }
    assert expected == depth.DEEP.lrs


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


def drawn(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of an axes' lines, by their labels."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())] for line in axes.lines
    }


def test_accuracies_and_windows_are_drawn_as_they_are_measured() -> None:
    values = {f"{task}_lstm_{length}": 0.9 for task in ("frjt", "live", "s5") for length in (16, 128)}
    values |= {"frjt_transformer_16": 0.6, "live_scan_16": 0.5, "frjt_lstm_16_window": 3.0, "s5_lstm_128_window": 7.0}
    assert points(values, r"frjt_lstm_(\d+)") == [(16, 0.9), (128, 0.9)]
    accuracy, windows = ([drawn(axes) for axes in row] for row in np.split(np.array(draw_accuracy(values).axes), 2))
    assert [panel["lstm"] for panel in accuracy] == [[(16, 0.9), (128, 0.9)]] * 3
    assert (accuracy[0]["transformer"], accuracy[1]["scan"]) == ([(16, 0.6)], [(16, 0.5)])
    assert (windows[0]["lstm"], windows[2]["lstm"]) == ([(16, 3)], [(128, 7)])
    frames = [panel["all frames"] for panel in windows]
    assert frames == [[(16, 17), (128, 129)], [(16, 17), (128, 129)], [(16, 16), (128, 128)]], "S5 has no first frame"


def test_depth_memory_and_the_length_law_are_drawn_as_they_are_measured() -> None:
    values = {"critical_lstm_1": 64.0, "critical_transformer_2": 4.0, "full_256_mb": 3.0, "keeping_256_mb": 2.0}
    values |= {"deep_lstm_1_at_2": 1.0, "deep_transformer_8_at_64": 0.1, "full_256_mb_most": 9.0}
    deep, critical, memory, loss = map(drawn, draw_cost(values, {"loss_raw_16": 2.0, "loss_truncated_64": 3.0}).axes)
    assert (deep["LSTM, 1 layer"], deep["transformer, 8"], deep["transformer, 1"]) == ([(2, 1)], [(64, 0.1)], [])
    assert (critical["transformer"], {y for _, y in critical["LSTM, 1 layer"]}) == ([(2, 4)], {64})
    assert (memory["whole"], memory["streamed, allocator keeps freed blocks"]) == ([(256, 3)], [(256, 2)])
    assert (loss["exact, own length"], loss["truncated at 16, same frames"]) == ([(16, 2)], [(64, 3)])


def test_a_child_that_ends_before_it_reads_its_question_leaves_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hasty.py").write_text("raise SystemExit('no room')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BenchError, match="hasty: no room"):
        ask_child("hasty", "a question that no pipe holds" * 10_000)


def test_a_child_that_is_silent_for_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stalled.py").write_text(
        "import sys, time\nprint('loading', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jobs, "MAX_SILENCE_S", 3.0)
    with pytest.raises(BenchError, match="stalled: silent for 3 s, so it was ended; the last it said: loading"):
        ask_child("stalled", {})


def test_the_memory_meter_sees_a_gradient_that_grows() -> None:
    """In processes of their own, as in the benchmark: four times the frames at once need far more memory."""
    short, long = (
        ask_child("benchmarks.fbam.memory_child", {"length": length, "chunk": None}, environment=streaming.RETURNING)
        for length in (64, 256)
    )
    assert long["bytes"] > 2 * short["bytes"] > 0


def growing(told: dict[str, int]) -> dict[str, float]:
    """What a memory meter would see of a gradient whose memory is that of its chunk."""
    return {"bytes": 1e6 * (told["chunk"] or told["length"])}


@pytest.fixture
def children_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Children of benchmarks in this process, as starting each costs seconds; which were asked, and how often.

    The memory meter is the exception: it says nothing about a process that did other work before.
    """
    asked, threads = Counter[str](), torch.get_num_threads()

    def ask(module: str, told: dict[str, Any], *_: object, **__: object) -> dict[str, float]:
        asked[module] += 1
        if module == "benchmarks.fbam.memory_child":
            return growing(told)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(json.dumps(told)))
            patch.setattr(sys, "stdout", said := io.StringIO())
            importlib.import_module(module).main()
        answer: dict[str, float] = json.loads(said.getvalue())
        return answer

    for caller in (jobs, streaming):
        monkeypatch.setattr(caller, "ask_child", ask)
    monkeypatch.setattr(jobs, "SIDE_BY_SIDE", 1)
    yield asked
    torch.set_num_threads(threads)


def test_the_benchmark_runs_from_end_to_end_and_measures_every_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children_here: Counter[str]
) -> None:
    monkeypatch.setattr(streaming, "ERROR_LENGTH", 8)
    monkeypatch.setattr(streaming, "CHUNKS", (3, 64))
    monkeypatch.setattr(streaming, "TIME_LENGTHS", {"full": 8, "short": 4, "long": 16})
    monkeypatch.setattr(bench, "QUICK_CHANGES", 5)
    monkeypatch.setattr(depth, "QUICK_STEPS", 1)
    monkeypatch.setattr(depth, "QUICK_SEQUENCES", 2)
    result = bench_fbam(quick=True, progress=QUIET, out=tmp_path)
    assert BARS.keys() <= result.values.keys()
    assert all(math.isfinite(value) for value in result.values.values() if not isinstance(value, str))
    exact = ("gradient_error_float64", "gradient_error_float32", "parameters_off", "replay_equal")
    assert all(result.met(name) for name in exact), "what does not depend on the size of the run"
    assert (result.values["memory_4096_vs_256"], result.values["full_memory_1024_vs_256"]) == (1, 4)
    assert children_here == {
        "benchmarks.fbam.memory_child": 8,
        "benchmarks.fbam.time_child": 1,
        "benchmarks.fbam.train_child": len(depth.depth_jobs(quick=True)),
    }
    asked = children_here.copy()
    assert bench_fbam(quick=True, progress=QUIET, out=tmp_path).values == result.values
    assert children_here == asked, "all parts were kept"


def test_the_length_law_runs_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children_here: Counter[str]
) -> None:
    monkeypatch.setattr(length_law, "QUICK", replace(length_law.QUICK, lengths=(2, 4), steps=1, changes=20))
    result = bench_length_law(quick=True, progress=QUIET, out=tmp_path)
    assert children_here == {"benchmarks.fbam.length_child": len(sides_of(length_law.QUICK))}
    for name in ("loss_raw_2", "loss_position_4", "loss_truncated_4", "exponent_raw", "exponent_truncated_ci"):
        assert math.isfinite(float(result.values[name])), name
    assert {result.values[f"exponent_{kind}_excludes_0"] for kind in ("raw", "position", "truncated")} <= {0, 1}
