"""Plots the curves of a run into one picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from shoal.errors import StorageError
from shoal.extras import require
from shoal.telemetry.metrics import Entry, number, read_metrics, read_steps
from shoal.watch.history import run_directory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID = "#333333", "#e4e4e4"
# Okabe & Ito, "Color Universal Design" (2008): distinct to every kind of colour vision.
BLUE, ORANGE, SKY = "#0072B2", "#D55E00", "#56B4E9"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.1,
    "legend.columnspacing": 1.2,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of one panel; NaN is a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str


def plot_run(run_dir: Path, out_png: Path) -> None:
    """Draws what a run learnt and how it behaved while it learnt, 1200 x 800 pixels."""
    require("plot", "curves")
    import matplotlib
    from matplotlib.figure import Figure

    folder = run_directory(run_dir) / "metrics"
    steps = read_steps(folder / "trainer.jsonl", "step")
    evals = read_steps(folder / "evaluator.jsonl", "eval", key="version")

    def curve(key: str, label: str, color: str = BLUE) -> Curve:
        return Curve(label, _values(steps, "step"), _values(steps, key), color)

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 20 / 3), dpi=120, layout="constrained")
        figure.suptitle(run_dir.resolve().name, fontsize=14, fontweight="bold", parse_math=False)
        panels = figure.subplot_mosaic(
            [["learning"] * 3, ["entropy", "gradient", "clip"], ["drift", "staleness", "waits"]],
            height_ratios=[1.7, 1, 1],
        )
        _draw(panels["learning"], "Learning", "mean", curve("reward", "reward"), curve("solve_rate", "solve rate", SKY))
        _draw_evals(panels["learning"], evals)
        _draw(panels["entropy"], "Entropy", "nats per token", curve("entropy", ""))
        _draw(panels["gradient"], "Gradient norm", "before clipping", curve("grad_norm", ""))
        _draw(panels["clip"], "Clipped", "% of tokens", curve("clip_low", "low"), curve("clip_high", "high", ORANGE))
        _draw(
            panels["drift"],
            "Drift",
            "nats per token",
            curve("kl", "to base"),
            curve("drift", "since sampled", ORANGE),
            smooth=False,
        )
        _draw(
            panels["staleness"],
            "Staleness",
            "versions",
            curve("staleness_mean", "mean"),
            curve("staleness_max", "largest", SKY),
            smooth=False,
        )
        _draw(panels["waits"], "Waiting", "% of time", curve("wait_share", "trainer"), _workers_wait(folder))
        if math.isfinite(panels["drift"].dataLim.minposy):
            panels["drift"].set_yscale("log", nonpositive="mask")
        for axes in panels.values():
            _finish(axes)
        for name in ("learning", "drift", "staleness", "waits"):
            panels[name].set_xlabel("training step")
        try:
            figure.savefig(out_png, format="png")
        except OSError as error:
            raise StorageError(f"{out_png}: the picture could not be written: {error.strerror}") from error


def _draw(axes: "Axes", title: str, unit: str, *curves: Curve, smooth: bool = True) -> None:
    """Draws the curves. A smooth one is its running mean over its pale values: the trend shows through the noise."""
    axes.set_title(title)
    axes.set_ylabel(unit)
    for curve in curves:
        if all(map(math.isnan, curve.y)):
            continue
        if smooth:
            axes.plot(curve.x, curve.y, color=curve.color, alpha=0.3, linewidth=1)
        y = running_mean(curve.y) if smooth else curve.y
        marker = "o" if len(y) < 3 else None
        axes.plot(curve.x, y, color=curve.color, linewidth=1.8, marker=marker, label=curve.label or None)


def _draw_evals(axes: "Axes", evals: list[Entry]) -> None:
    """Pass@1 on tasks never trained on, with its 95 % interval.

    Version k is what step k generates with, so an evaluation stands at its version on the axis of steps.
    """
    points = [entry for entry in evals if number(entry, "pass_at_1") is not None]
    if not points:
        return
    x, y = _values(points, "version"), _values(points, "pass_at_1")
    below = [max(value - low, 0.0) for value, low in zip(y, _values(points, "low"), strict=True)]
    above = [max(high - value, 0.0) for value, high in zip(y, _values(points, "high"), strict=True)]
    label = "held-out pass@1, 95 % interval"
    axes.errorbar(x, y, [below, above], label=label, color=ORANGE, fmt="o:", markersize=5, capsize=3, linewidth=1.3)
    axes.set_ylim(top=max(1.12, axes.get_ylim()[1]))  # room for the whole range of pass@1 and a figure above it
    for at in {0, len(points) - 1}:
        reach = 0.0 if math.isnan(above[at]) else above[at]
        axes.annotate(
            f"{y[at]:.2f}",
            (x[at], y[at] + reach),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=ORANGE,
            fontweight="bold",
        )


def _finish(axes: "Axes") -> None:
    """Whole steps below, zero at the foot, and the legend beside the title, where it can never cover a curve."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.minorticks_off()
    if not axes.has_data():
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", va="center", color="#999999")
        axes.set_yticks([])
        return
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    if axes.get_ylabel().startswith("%"):
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(labels))


def running_mean(values: Sequence[float]) -> list[float]:
    """The mean over a window about each value, a fifteenth of the series wide. Gaps stay gaps."""
    half = len(values) // 30
    windows = ([v for v in values[max(0, i - half) : i + half + 1] if not math.isnan(v)] for i in range(len(values)))
    return [math.nan if math.isnan(value) else fmean(window) for value, window in zip(values, windows, strict=True)]


def _values(entries: Sequence[Entry], key: str) -> list[float]:
    return [math.nan if (value := number(entry, key)) is None else value for entry in entries]


def _workers_wait(folder: Path) -> Curve:
    """The share of time the workers waited, averaged over all submissions for a step."""
    shares: dict[int, list[float]] = {}
    for path in folder.glob("worker-*.jsonl"):
        for entry in read_metrics(path):
            share = number(entry, "wait_share")
            if entry["event"] == "submission" and isinstance(entry.get("step"), int) and share is not None:
                shares.setdefault(entry["step"], []).append(share)
    steps = sorted(shares)
    return Curve("workers", steps, [fmean(shares[step]) for step in steps], ORANGE)
