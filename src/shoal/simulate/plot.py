"""Pictures: one simulation over time, and a sweep as curves."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import StorageError
from shoal.extras import require
from shoal.simulate.report import Report
from shoal.simulate.simulation import Simulation
from shoal.watch.plot import BLUE, ORANGE, SKY, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (BLUE, ORANGE, SKY, "#009E73", "#CC79A7")
MINUTES = (20, 50, 100, 200)


def plot_simulation(simulation: Simulation, out_png: Path) -> None:
    """When each version was everywhere, its first file and its batch came, and what each step took."""
    require("plot", "the picture of a simulation")
    import matplotlib
    from matplotlib.figure import Figure

    log = simulation.log
    versions = sorted(log.versions)
    steps = sorted(step for step, times in log.steps.items() if isfinite(times.ended))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
        left, right = figure.subplots(1, 2)
        left.set_title("Minutes after a version was published")
        for label, name, color in (
            ("half of the machines have it", "half", SKY),
            ("all have it", "everywhere", BLUE),
            ("first file", "first_file", ORANGE),
            ("full batch", "full_batch", "#009E73"),
        ):
            y = [(getattr(log.versions[v], name) - log.versions[v].published) / 60 for v in versions]
            left.plot(versions, y, label=label, color=color)
        left.set_xlabel("version")
        right.set_title("Minutes of a step")
        ends = [log.steps[step].ended / 60 for step in steps]
        whole = [nan, *(after - before for before, after in pairwise(ends))]
        right.plot(steps, whole, label="from the end of the one before", color=BLUE)
        trained = [(log.steps[step].ended - log.steps[step].began) / 60 for step in steps]
        right.plot(steps, trained, label="training", color=ORANGE)
        right.set_xlabel("step")
        for axes in (left, right):
            axes.set_ylim(bottom=0)
            axes.legend(loc="best")
        _save(figure, out_png)


def plot_sweep(panels: Mapping[str, Mapping[str, Sequence[tuple[float, Report]]]], out_png: Path) -> None:
    """A panel per sweep, with a curve per kind of run: minutes per step against what was varied."""
    require("plot", "the picture of a sweep")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), dpi=120, layout="constrained")
        # One scale for all: what a sweep does not change looks flat.
        columns = figure.subplots(1, len(panels), sharey=True)
        for axes, (title, curves) in zip(columns, panels.items(), strict=True):
            axes.set_title(title)
            for (label, points), color in zip(curves.items(), COLORS, strict=False):
                x = [at for at, _ in points]
                axes.plot(x, [report.step_s / 60 for _, report in points], "o-", label=label, color=color)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.legend(loc="best")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,g}")
                axis.set_minor_formatter(NullFormatter())
        columns[0].set_yticks(MINUTES)
        columns[0].set_ylabel("minutes per step")
        _save(figure, out_png)


def _save(figure: "Figure", out_png: Path) -> None:
    try:
        figure.savefig(out_png, format="png")
    except OSError as error:
        raise StorageError(f"{out_png}: the picture could not be written: {error.strerror}") from error
