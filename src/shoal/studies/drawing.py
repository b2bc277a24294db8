"""Figures of studies: curves with bands over seeds, and bars with intervals, in the colours of the run's own plots."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.extras import require
from shoal.studies.intervals import Interval, mean_of
from shoal.studies.study import Found, Outcome, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito, "Color Universal Design" (2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333", "#999999")


def draw_study(study: Study, found: Found, path: Path) -> None:
    """The study's own figure, with what was claimed as its title."""
    require("plot", f"the figure of study {study.name}")
    import matplotlib
    from matplotlib.figure import Figure

    from shoal.watch.plot import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
        figure.suptitle(study.summary, fontsize=11, fontweight="bold", parse_math=False)
        study.draw(found, figure)
        figure.savefig(path)


def band(axes: "Axes", runs: Sequence[Outcome], key: str, label: str, color: str, x: str = "step") -> None:
    """The mean of a curve over seeds, and its interval as a band. Curves are as long as the shortest one."""
    count = min((len(run["curve"]) for run in runs), default=0)
    if not count:
        return
    steps = [point[x] for point in runs[0]["curve"][:count]]
    columns = [mean_of([run["curve"][at][key] for run in runs]) for at in range(count)]
    axes.plot(steps, [one.mean for one in columns], color=color, label=label, linewidth=1.4)
    if len(runs) > 1:
        axes.fill_between(
            steps, [one.low for one in columns], [one.high for one in columns], color=color, alpha=0.15, linewidth=0
        )


def bars(axes: "Axes", labels: Sequence[str], intervals: Sequence[Interval]) -> None:
    """Means with their intervals, one bar per label."""
    for at, (one, color) in enumerate(zip(intervals, _cycle(len(labels)), strict=True)):
        width = one.high - one.mean if one.seeds > 1 else 0.0
        axes.barh(at, one.mean, xerr=width, color=color, capsize=3, height=0.6)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.axvline(0.0, color="#333333", linewidth=0.8)


def titled(axes: "Axes", title: str, x: str, y: str = "") -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _cycle(count: int) -> list[str]:
    return [COLORS[at % len(COLORS)] for at in range(count)]
