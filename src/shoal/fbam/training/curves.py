"""Curves of a training run: loss, accuracy and the gradient's norm by step."""

from collections.abc import Sequence

import numpy as np

from shoal.errors import StorageError
from shoal.extras import require
from shoal.fbam.training.run_directory import RunDirectory
from shoal.telemetry.metrics import number, read_steps

PANELS = (("loss", "loss, nats per scored frame"), ("accuracy", "accuracy"), ("gradient_norm", "gradient norm"))
SMOOTHED_OVER = 50  # steps; lengths differ from step to step, and losses with them


def draw_curves(run: RunDirectory) -> None:
    """Writes RUN/curves.png from RUN/metrics.jsonl."""
    require("plot", "curves")
    from matplotlib.figure import Figure

    entries = read_steps(run.metrics, "step")
    figure = Figure(figsize=(10, 3), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        points = [(entry["step"], value) for entry in entries if (value := number(entry, key)) is not None]
        steps, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(steps, values, alpha=0.25)
        axes.plot(steps, running_mean(values), color="C0")
        axes.set_xlabel("step")
        axes.set_ylabel(label)
    try:
        figure.savefig(run.curves, dpi=110, format="png")
    except OSError as error:
        raise StorageError(f"{run.curves}: the picture could not be written: {error.strerror}") from error


def running_mean(values: Sequence[float]) -> np.ndarray:
    """The mean of up to SMOOTHED_OVER values before and at each."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(sums))
    begins = np.maximum(0, ends - SMOOTHED_OVER)
    means: np.ndarray = (sums[ends] - sums[begins]) / (ends - begins)
    return means
