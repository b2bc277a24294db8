"""Evaluates the newest checkpoint of a run: a task by length, a recording on the end of its history."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shoal.errors import FbamError
from shoal.fbam.gradient import evaluate_stream
from shoal.fbam.tasks import build_task
from shoal.fbam.training.evaluation import CHUNK, LengthReport, draw_parts, report_length
from shoal.fbam.training.run_directory import RunDirectory, open_source
from shoal.fbam.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class HeldoutReport:
    """Loss and accuracy over all frames of stretches of the held-out part of a recording."""

    length: int
    accuracy: float
    loss: float


def evaluate_run(path: Path, lengths: Sequence[int], sequences: int) -> Sequence[LengthReport | HeldoutReport]:
    """One report per length."""
    run = RunDirectory(path)
    settings = run.read_settings()
    if not run.checkpoint.is_file():
        raise FbamError(f"run {path}: no checkpoint yet; train it with: shoal fbam train {path}")
    source = open_source(settings, "heldout")
    trainer = Trainer(settings, source)
    run.restore(trainer)
    if settings.task is not None:
        task = build_task(settings.task)
        return [report_length(trainer.model, task, length, sequences) for length in lengths]
    reports = []
    for length in lengths:
        losses = [evaluate_stream(trainer.model, part, CHUNK) for part in draw_parts(source, length, sequences, 0)]
        scored = sum(loss.scored for loss in losses)
        accuracy = sum(loss.correct * loss.scored for loss in losses) / scored
        reports.append(HeldoutReport(length, accuracy, sum(loss.mean * loss.scored for loss in losses) / scored))
    return reports


def print_reports(reports: Sequence[LengthReport | HeldoutReport], console: Console) -> None:
    """A table with one row per length: floors and windows for a task, the loss for a recording."""
    on_task = isinstance(reports[0], LengthReport)
    table = Table("length", "accuracy", *(("without memory", "equivalent window") if on_task else ("loss",)))
    for report in reports:
        row = [str(report.length), f"{report.accuracy:.3f}"]
        if isinstance(report, LengthReport):
            window = "all frames" if report.window >= report.frames else f"last {report.window}"
            table.add_row(*row, f"{report.floor:.3f}", window)
        else:
            table.add_row(*row, f"{report.loss:.3f}")
    console.print(table)
