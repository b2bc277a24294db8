"""Draws the figures of the page on action models from the JSON of its benchmarks.

Usage: `python -m benchmarks.fbam.plot FBAM.json OUT.png [LENGTH.json]`. The inputs are what the benchmarks
`fbam` and, for the panel of the length law, `fbam-length` print with `--json`.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Mapping[str, float]
KINDS = ("lstm", "transformer", "scan")
TASKS = {"frjt": "FRJT, trained on 1..16", "live": "frjt-live, trained on 1..32", "s5": "S5, trained on 1..32"}


def points(values: Values, pattern: str) -> list[tuple[int, float]]:
    """Figures whose name matches, by the number in it."""
    found = ((re.fullmatch(pattern, name), value) for name, value in values.items())
    return sorted((int(match[1]), value) for match, value in found if match)


def draw(values: Values, out: Path, law: Values | None = None) -> None:
    """Accuracy against length per task, critical length by layers, memory against length, and the length law."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = list(figure.subplots(2, 3).flat)
    for axes, (task, title) in zip(panels, TASKS.items(), strict=False):
        for kind in KINDS:
            _line(axes, points(values, rf"{task}_{kind}_(\d+)"), kind)
        axes.set(title=title, xlabel="length", ylabel="accuracy at the last frame", ylim=(0, 1.03), xscale="log")
        axes.legend()
    _line(panels[3], points(values, r"critical_transformer_(\d+)"), "transformer")
    panels[3].axhline(values["critical_lstm_1"], color="C0", linestyle="--", label="LSTM, 1 layer")
    panels[3].set(title="Critical length, S5", xlabel="layers", ylabel="longest with accuracy 0.9")
    panels[3].legend()
    for side in ("streamed", "full"):
        _line(panels[4], points(values, rf"{side}_(\d+)_mb"), side)
    panels[4].set(title="Memory of a gradient", xlabel="frames", ylabel="MB above the baseline", xscale="log", ylim=0)
    panels[4].legend()
    for kind in ("raw", "position", "truncated") if law else ():
        _line(panels[5], points(law or {}, rf"loss_{kind}_(\d+)"), kind)
    panels[5].set(title="Loss against trained length", xlabel="length", ylabel="nats per frame")
    if law:
        panels[5].set(xscale="log", yscale="log")
        panels[5].legend()
    figure.savefig(out, dpi=110)


def _line(axes: "Axes", found: list[tuple[int, float]], label: str) -> None:
    axes.plot([x for x, _ in found], [y for _, y in found], marker="o", label=label)


def _values(path: str) -> Values:
    values: Values = json.loads(Path(path).read_text())["values"]
    return values


if __name__ == "__main__":
    draw(_values(sys.argv[1]), Path(sys.argv[2]), _values(sys.argv[3]) if len(sys.argv) > 3 else None)
