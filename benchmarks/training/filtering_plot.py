"""Draws the figure of the filter benchmark from its JSON.

Usage: `python -m benchmarks.training.filtering_plot RESULT.json OUT.png`.
"""

import json
import re
import sys
from pathlib import Path

LABELS = {"unfiltered": "no filter", "filtered": "offline filter", "online_on": "online filter"}
POINT = re.compile(r"reward_(unfiltered|filtered|online_on)_at_(\d+)")


def curves_of(values: dict[str, float]) -> dict[str, list[tuple[int, float]]]:
    """Mean held-out reward of each side by the number of steps."""
    curves: dict[str, list[tuple[int, float]]] = {side: [] for side in LABELS}
    for name, value in values.items():
        if found := POINT.fullmatch(name):
            curves[found[1]].append((int(found[2]), value))
    return {side: sorted(points) for side, points in curves.items()}


def draw(values: dict[str, float], path: Path) -> None:
    """Curves of the means, each with the interval of its last point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for side, points in curves_of(values).items():
        steps, rewards = zip(*points, strict=True)
        (line,) = axes.plot(steps, rewards, marker="o", label=LABELS[side])
        axes.errorbar(steps[-1], rewards[-1], yerr=values[f"reward_{side}_ci"], color=line.get_color(), capsize=4)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out reward, all tasks")
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["values"], Path(sys.argv[2]))
