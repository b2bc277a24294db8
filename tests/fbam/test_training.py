"""Training: a run that was killed has the losses of one that was not, a small model learns, and misuse is named."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import app
from shoal.errors import FbamError
from shoal.fbam import ModelConfig
from shoal.fbam.frames import IGNORED, Stream
from shoal.fbam.tasks import TASKS, Frjt, Task, build_task, equivalent_window
from shoal.fbam.training.evaluate_run import print_reports
from shoal.fbam.training.evaluation import LastFrame, LengthReport, accuracy_at, report_length
from shoal.fbam.training.run_directory import RunDirectory
from shoal.fbam.training.settings import TrainSettings, parse_settings
from shoal.fbam.training.trainer import Trainer
from shoal.telemetry.metrics import read_steps
from tests.fbam.repositories import make_repository

STEPS = 120
SMALL = ["--task", "frjt", "--width", "16", "--head-width", "8", "--batch", "8", "--length", "4", "--chunk", "3"]
FLAGS = [*SMALL, "--steps", str(STEPS), "--checkpoint-every", "7"]


def shoal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["fbam", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def small_settings(**changes: object) -> TrainSettings:
    task = Frjt()
    model = ModelConfig(shape=task.shape, actions=task.actions, head_width=8, width=16)
    return TrainSettings.model_validate({"model": model, "task": "frjt", "max_length": 4, "batch": 8, **changes})


def losses(run: Path) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in read_steps(run / "metrics.jsonl", "step")]


# A training that kills itself where it would begin a step, between two checkpoints.
KILLED_AT = 38
SUICIDE = f"""
import os, signal, sys
from shoal.cli import app
from shoal.fbam.training.trainer import Trainer

whole_step = Trainer.step

def step(trainer):
    if trainer.steps_done == {KILLED_AT}:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole_step(trainer)

Trainer.step = step
app(sys.argv[1:])
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in the order of one thread, as in the processes that are compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_run_that_was_killed_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    shoal("train", str(tmp_path / "calm"), *FLAGS)
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", SUICIDE, "fbam", "train", str(killed), *FLAGS]
    process = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300, check=False)
    assert process.returncode == -signal.SIGKILL
    assert [step for step, _ in losses(killed)] == list(range(KILLED_AT)), "it was killed on its way"
    again = shoal("train", str(killed))
    assert losses(killed) == losses(tmp_path / "calm")
    assert f"step {STEPS}: loss" in again
    assert "all steps were made before" in shoal("train", str(killed))
    assert (killed / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_lstm_learns_to_run_short_programs() -> None:
    task = Frjt()
    model = ModelConfig(shape=task.shape, actions=task.actions, head_width=32, width=32)
    settings = small_settings(model=model, steps=300, batch=128, max_length=3, lr=1e-2, warmup_steps=20)
    trainer = Trainer(settings, task)
    before = accuracy_at(trainer.model, trainer.source, 3, 256)
    for _ in range(settings.steps):
        trainer.step()
    report = report_length(trainer.model, task, 3, 256)
    assert before < 0.8
    assert report.accuracy > 0.95
    assert report.window > 2, "so many last frames must have been used"


def test_the_number_of_steps_done_is_part_of_what_a_checkpoint_restores(tmp_path: Path) -> None:
    run, first = RunDirectory(tmp_path), Trainer(small_settings(), Frjt())
    for _ in range(3):
        first.step()
    run.save(first)
    second = Trainer(small_settings(), Frjt())
    run.restore(second)
    assert second.steps_done == 3
    assert first.step() == second.step()


def test_lengths_grow_with_the_curriculum_and_the_rate_rises_holds_and_falls() -> None:
    settings = small_settings(steps=100, max_length=11, curriculum_steps=50, warmup_steps=10, lr=1.0)
    assert [settings.longest_at(step) for step in (0, 25, 49, 50, 99)] == [1, 6, 10, 11, 11]
    rates = [settings.lr_at(step) for step in (0, 9, 50, 90, 99)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.05])


def test_evaluation_scores_the_last_frame_alone() -> None:
    task = build_task("s5")
    stream = task.draw(np.random.default_rng(0), 3, 10)
    last = LastFrame(stream)
    targets = torch.cat([last.targets(0, 6), last.targets(6, 10)], dim=1)
    assert (targets[:, :-1] == IGNORED).all()
    assert torch.equal(targets[:, -1], stream.targets(0, 10)[:, -1])


class Noting:
    """A source that notes the sequences which are drawn from it."""

    def __init__(self, task: Task) -> None:
        self.task, self.shape, self.actions = task, task.shape, task.actions
        self.drawn: set[bytes] = set()

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Stream:
        stream = self.task.draw(rng, batch, length)
        self.drawn |= {frames.numpy().tobytes() for frames in stream.frames(0, stream.length)}
        return stream


def test_no_sequence_that_is_evaluated_was_trained_on() -> None:
    """Of 3^24 sequences, so few that are drawn would meet by chance in less than one of a million runs."""
    task, length = build_task("s5"), 24
    trained, evaluated = Noting(task), Noting(task)
    model = ModelConfig(shape=task.shape, actions=task.actions, head_width=8, width=16)
    trainer = Trainer(small_settings(model=model, task="s5", min_length=length, max_length=length), trained)
    for _ in range(length + 1):
        trainer.step()
    accuracy_at(trainer.model, evaluated, length, 64, trainer.settings.seed)
    assert (len(trained.drawn), len(evaluated.drawn)) == (8 * (length + 1), 64)
    assert trained.drawn.isdisjoint(evaluated.drawn)


def test_a_run_is_evaluated_by_length_with_floor_and_window(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shoal("train", str(run), *SMALL, "--steps", "2")
    found = json.loads(shoal("eval", str(run), "--lengths", "2,5", "--sequences", "40", "--json"))
    assert [report["length"] for report in found] == [2, 5]
    assert all(0 <= report["accuracy"] <= 1 and report["floor"] >= 0.5 for report in found)
    assert "equivalent window" in shoal("eval", str(run), "--lengths", "2", "--sequences", "40")


def perfect_report(name: str, length: int) -> LengthReport:
    task = build_task(name)
    window = equivalent_window(task, length, 1.0, 1024)
    return LengthReport(length, task.frames(length), 1.0, task.window_floor(length, 0), window)


@pytest.mark.parametrize("name", TASKS)
def test_a_perfect_result_on_short_sequences_used_all_frames(name: str) -> None:
    out = StringIO()
    print_reports([perfect_report(name, 9)], Console(file=out, width=100))
    assert "all frames" in out.getvalue()


def test_a_perfect_result_on_long_sequences_that_are_forgotten_is_told_as_a_window() -> None:
    out = StringIO()
    print_reports([perfect_report("frjt", 128)], Console(file=out, width=100))
    assert re.search(r"last \d\d ", out.getvalue())


def test_a_recording_is_made_watched_trained_on_and_evaluated(tmp_path: Path) -> None:
    versions = [{"a.py": b"def f():\n    return %d\n" % n} for n in range(8)]
    repository = make_repository(tmp_path / "repository", *versions)
    recording, run = tmp_path / "r.jsonl", tmp_path / "run"
    assert "8 of 8 text changes (100.0%)" in shoal("record", str(repository), str(recording))
    assert "a.py" in shoal("show", str(recording))
    assert "return 0" in shoal("show", str(recording), "--change", "1", "--at", "0", "--rows", "6", "--columns", "20")
    sizes = ["--rows", "4", "--columns", "8", "--head-width", "4", "--width", "8", "--batch", "2", "--length", "6"]
    shoal("train", str(run), "--recording", str(recording), *sizes, "--steps", "2", "--method", "truncated")
    found = json.loads(shoal("eval", str(run), "--lengths", "4", "--sequences", "3", "--json"))
    assert found[0]["loss"] > 0
    recording.write_bytes(recording.read_bytes().replace(b"a.py", b"b.py"))
    with pytest.raises(FbamError, match="it has changed since the run began"):
        shoal("eval", str(run))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "new"], "a new run needs --task NAME or --recording FILE"),
        (["train", "new", "--task", "chess"], "task chess: unknown"),
        (["train", "new", "--task", "s5", "--integrator", "gru"], "model.integrator = 'gru': Input should be 'lstm'"),
        (["train", "new", "--recording", "nowhere"], "recording nowhere: cannot be read (No such file or directory)"),
        (["eval", "nowhere"], "run nowhere: no settings.json there; start a run with: shoal fbam train nowhere"),
        (["eval", "run", "--lengths", "4,x"], "--lengths 4,x: give numbers with commas between them"),
        (["eval", "run"], "run run: no checkpoint yet; train it with: shoal fbam train run"),
        (["train", "run", "--steps", "9"], "fbam train run does not take --steps: the run exists"),
        (["train", "new", "--task", "s5", "--rows", "9"], "fbam train --task does not take --rows: a task has its own"),
        (["train", "new", "--recording", "r", "--curriculum", "9"], "--recording does not take --curriculum: all its"),
        (["record", ".", "r.jsonl"], "repository .: not a git repository"),
        (["show", "run/settings.json"], "recording run/settings.json: line 1: "),
    ],
)
def test_misuse_is_named_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    RunDirectory(Path("run")).create(small_settings())
    result = CliRunner().invoke(app, ["fbam", *arguments])
    assert said in str(result.exception)
    assert not Path("new").exists()


def test_a_run_that_no_sequence_can_be_drawn_for_leaves_nothing_in_the_way_of_another_start(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", *({"a": b"%d\n" % n} for n in range(8)))
    recording, run = str(tmp_path / "r.jsonl"), str(tmp_path / "run")
    shoal("record", str(repository), recording)
    start = ["train", run, "--recording", recording, "--rows", "1", "--columns", "4", "--batch", "1", "--steps", "1"]
    with pytest.raises(FbamError, match=r"its train part has \d+ frames, sequences need 999"):
        shoal(*start, "--length", "999")
    assert "step 1: loss" in shoal(*start, "--length", "4")


def of_another_run(file: Path) -> None:
    narrow = small_settings().model.model_copy(update={"width": 8})
    torch.save(Trainer(small_settings(model=narrow), Frjt()).state(), file)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(b"junk\n"),
        lambda file: file.write_bytes(b""),
        lambda file: torch.save([1], file),
        lambda file: torch.save({"steps_done": 1}, file),
        of_another_run,
    ],
)
def test_a_checkpoint_that_is_none_of_this_run_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    run = RunDirectory(tmp_path)
    write(run.checkpoint)
    with pytest.raises(FbamError, match=r"checkpoint.pt is damaged, or another run's; remove it to begin at step 0"):
        run.restore(Trainer(small_settings(), Frjt()))


def test_a_damaged_checkpoint_and_unknown_settings_are_refused_by_name(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.checkpoint.write_bytes(b"PK\3\4 nonsense")
    with pytest.raises(FbamError, match=r"checkpoint.pt is damaged, or another run's; remove it to begin at step 0"):
        run.restore(Trainer(small_settings(), Frjt()))
    with pytest.raises(FbamError, match=r"settings.json: chess = 1: Extra inputs are not permitted"):
        parse_settings(json.dumps({**small_settings().model_dump(), "chess": 1}), "settings.json")
    with pytest.raises(ValidationError, match="min_length 9 is above max_length 4"):
        small_settings(min_length=9)
    with pytest.raises(FbamError, match="source with 120 actions"):
        Trainer(small_settings(), build_task("s5"))
