"""Trains a run from its newest checkpoint to its last step, with metrics, progress and curves."""

import time
from pathlib import Path

from rich.console import Console

from shoal.extras import is_installed
from shoal.fbam.training.curves import draw_curves
from shoal.fbam.training.run_directory import RunDirectory, open_source
from shoal.fbam.training.trainer import StepReport, Trainer
from shoal.files import locked
from shoal.telemetry.metrics import MetricsWriter

LINE_S = 10.0  # off a terminal, a line of progress is written no more often than this


def train_run(path: Path, console: Console) -> StepReport | None:
    """The report of the last step; None if all steps had been made before."""
    run = RunDirectory(path)
    settings = run.read_settings()
    trainer = Trainer(settings, open_source(settings))
    report = None
    refusal = f"run {path}: another process trains it; wait for it or end it"
    with locked(run.lock, refusal), MetricsWriter(run.metrics) as metrics, console.status("") as status:
        run.restore(trainer)
        told = time.monotonic()
        while trainer.steps_done < settings.steps:
            began = time.monotonic()
            report = trainer.step()
            seconds = time.monotonic() - began
            metrics.write("step", **_entry(report), frames_per_s=report.length * settings.batch / seconds)
            line = f"step {report.step + 1} of {settings.steps}: loss {report.loss.mean:.4f}, {_accuracy(report)}"
            status.update(line)
            if not console.is_terminal and time.monotonic() - told >= LINE_S:
                told = time.monotonic()
                console.print(line, highlight=False)
            if trainer.steps_done % settings.checkpoint_every == 0 or trainer.steps_done == settings.steps:
                run.save(trainer)
    if is_installed("matplotlib"):
        draw_curves(run)
    return report


def _entry(report: StepReport) -> dict[str, float]:
    return {
        "step": report.step,
        "length": report.length,
        "loss": report.loss.mean,
        "accuracy": report.loss.correct,
        "gradient_norm": report.gradient_norm,
    }


def _accuracy(report: StepReport) -> str:
    return f"accuracy {report.loss.correct:.3f} at length {report.length}"
