"""Help panel "Action models": train, evaluate, record and watch; `docs/fbam.md` says what they are."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.app import app, console
from shoal.cli.options import refuse_flags, takes_options
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.fbam.training.settings import TrainSettings

PANEL = "Action models"
fbam = typer.Typer(help="Frame-based action models: a screen per step goes in, an action per step comes out.")
app.add_typer(fbam, name="fbam", no_args_is_help=True, rich_help_panel=PANEL)
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a training run.")]
RecordingPath = Annotated[Path, typer.Argument(metavar="RECORDING", help="A file of `shoal fbam record`.")]
Rows = Annotated[int, typer.Option(min=1, max=512, help="Rows of the screen.")]
Columns = Annotated[int, typer.Option(min=1, max=512, help="Columns of the screen.")]
ShownRows = Annotated[int | None, typer.Option(min=1, max=512, help="Rows; default: 24, if the terminal has room.")]
ShownColumns = Annotated[
    int | None, typer.Option(min=1, max=512, help="Columns; default: 80, if the terminal has room.")
]
# Flags that have the names of settings.
MODEL_FLAGS = ("integrator", "layers", "width", "head_width")
TRAIN_FLAGS = ("steps", "batch", "chunk", "method", "lr", "seed", "checkpoint_every")


@dataclass(frozen=True)
class NewRun:
    """What a new run trains. A run that exists has its settings, and takes none of these."""

    task: Annotated[str | None, typer.Option(help="frjt, frjt-live, s5 or maze.")] = None
    recording: Annotated[Path | None, typer.Option(help="Train on a file of `shoal fbam record` instead.")] = None
    integrator: Annotated[str, typer.Option(help="lstm, transformer or scan.")] = "lstm"
    layers: Annotated[int, typer.Option(min=1, help="Layers of the integrator.")] = 1
    width: Annotated[int, typer.Option(min=1, help="Width of the integrator.")] = 128
    head_width: Annotated[int, typer.Option(min=1, help="Width of the frame head.")] = 64
    rows: Rows = 12
    columns: Columns = 40
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3000
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 128
    length: Annotated[int, typer.Option(min=1, help="Longest sequence; tasks are trained on 1 .. LENGTH.")] = 16
    curriculum: Annotated[int, typer.Option(min=0, help="Steps in which lengths grow from 1 to LENGTH.")] = 0
    chunk: Annotated[int, typer.Option(min=1, help="Frames in memory at once; the gradient does not change.")] = 64
    method: Annotated[str, typer.Option(help="exact, or truncated: no gradient from chunk to chunk.")] = "exact"
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 3e-3
    seed: Annotated[int, typer.Option(min=0, help="Of weights and sequences.")] = 0
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 200

    def settings(self) -> "TrainSettings":
        """Checked settings, with the frames and actions of what is trained on."""
        from pydantic import ValidationError

        from shoal.fbam.frames import FrameShape
        from shoal.fbam.recording import read_recording
        from shoal.fbam.tasks import build_task
        from shoal.fbam.training.settings import TrainSettings, describe
        from shoal.files import sha256_file

        if (self.task is None) == (self.recording is None):
            raise ConfigError("fbam train: a new run needs --task NAME or --recording FILE, one of the two")
        if self.task is not None:
            task = build_task(self.task)
            source = {"shape": task.shape, "actions": task.actions}
            data = {"task": self.task, "min_length": 1}
        else:
            assert self.recording is not None
            actions = read_recording(self.recording).table.count
            shape = FrameShape(rows=self.rows, columns=self.columns)
            source = {"shape": shape, "actions": actions, "conv_stages": 2, "head_blocks": 1}
            digest = sha256_file(self.recording)
            data = {"recording": self.recording.resolve(), "recording_sha256": digest, "min_length": self.length}
        model = {**source, **{name: getattr(self, name) for name in MODEL_FLAGS}}
        lengths = {"max_length": self.length, "curriculum_steps": self.curriculum}
        same = {name: getattr(self, name) for name in TRAIN_FLAGS}
        try:
            return TrainSettings.model_validate({"model": model, **data, **same, **lengths})
        except ValidationError as error:
            raise ConfigError(f"fbam train: {describe(error)}") from error


@fbam.command()
@takes_options
def train(context: typer.Context, run: RunPath, new: NewRun) -> None:
    """Train an action model, or go on with a run that was stopped or killed: it gets the losses it would have had.

    For example: shoal fbam train runs/frjt --task frjt
    """
    from shoal.fbam.training.run_directory import RunDirectory, check_source
    from shoal.fbam.training.train_run import train_run

    directory = RunDirectory(run)
    if directory.exists():
        why = "the run exists and has its settings; give another directory, or no flags to go on"
        refuse_flags(context, f"fbam train {run}", NewRun.__dataclass_fields__, why)
    else:
        if new.task is not None:
            refuse_flags(context, "fbam train --task", ("rows", "columns"), "a task has its own frames")
        else:
            why = "all its sequences have --length frames"
            refuse_flags(context, "fbam train --recording", ("curriculum",), why)
        settings = new.settings()
        check_source(settings)  # settings that nothing can be trained with would have to be removed by hand
        directory.create(settings)
    report = train_run(run, console)
    if report is None:
        console.print(f"{run}: all steps were made before", markup=False, highlight=False, soft_wrap=True)
        return
    loss = f"loss {report.loss.mean:.4f}, accuracy {report.loss.correct:.3f} at length {report.length}"
    console.print(f"{run}: step {report.step + 1}: {loss}", markup=False, highlight=False, soft_wrap=True)


@fbam.command("eval")
def evaluate(
    run: RunPath,
    lengths: Annotated[str, typer.Option(help="Lengths to evaluate at, as in 16,64,128.")] = "16,64,128",
    sequences: Annotated[int, typer.Option(min=1, help="Sequences per length.")] = 1024,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure a run's accuracy by length, beside its floor and the window of last frames that would explain it.

    A run on a recording is measured on the end of the history, which is not trained on.
    """
    from shoal.fbam.training.evaluate_run import evaluate_run, print_reports

    try:
        chosen = [int(length) for length in lengths.split(",")]
    except ValueError as error:
        raise ConfigError(f"--lengths {lengths}: give numbers with commas between them, as in 16,64,128") from error
    if min(chosen) < 1:
        raise ConfigError(f"--lengths {lengths}: each must be at least 1")
    reports = evaluate_run(run, chosen, sequences)
    if json_:
        console.out(json.dumps([asdict(report) for report in reports]), highlight=False)
    else:
        print_reports(reports, console)


@fbam.command()
def record(
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="A git repository; it need not be trusted.")],
    out: RecordingPath,
    commits: Annotated[int, typer.Option(min=1, help="Newest commits to read.")] = 10_000,
    changes: Annotated[int, typer.Option(min=1, help="Changes to record, from the oldest of these commits on.")] = 2000,
    words: Annotated[int, typer.Option(min=0, help="Words that one action types, chosen from the changes.")] = 2000,
) -> None:
    """Record a git history as keystrokes: each text change replays byte for byte, or is left out and counted."""
    from shoal.fbam.recording import RecordOptions, record_repository
    from shoal.fbam.recording.repository import Limits

    options = RecordOptions(Limits(commits=commits), max_changes=changes, words=words)
    with console.status("") as status:
        recording, report = record_repository(repository, out, options, status.update)
    share = report.kept / report.eligible if report.eligible else 0.0
    console.print(f"{report.kept:,} of {report.eligible:,} text changes ({share:.1%}), {recording.frames:,} frames")
    for reason, count in report.left_out.most_common():
        console.print(f"left out: {count:,}: {reason}", highlight=False)
    console.print(f"not text, too large or missing: {report.not_text:,}", highlight=False)


@fbam.command()
def show(
    recording: RecordingPath,
    change: Annotated[int | None, typer.Option(help="Change to watch; without it they are listed.")] = None,
    at: Annotated[int | None, typer.Option(min=0, help="Print this frame alone.")] = None,
    speed: Annotated[float, typer.Option(min=0.1, max=1000, help="Frames per second.")] = 10.0,
    rows: ShownRows = None,
    columns: ShownColumns = None,
) -> None:
    """Watch a recording in the terminal."""
    from shoal.fbam.recording import read_recording
    from shoal.fbam.recording.terminal import list_changes, play, print_frame, shape_for

    shape = shape_for(console, rows, columns)
    recorded = read_recording(recording)
    if change is None:
        list_changes(recorded, console)
    elif at is not None:
        print_frame(recorded, change, at, shape, console)
    else:
        play(recorded, change, speed, shape, console)
