"""Draws the figures of the page on action models from the JSON of its benchmarks.

Usage: `python -m benchmarks.fbam.plot FBAM.json LENGTH.json DIR` writes fbam-accuracy.png and fbam-cost.png. Its inputs
are what the benchmarks `fbam` and `fbam-length` print with `--json`.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.fbam.tasks import S5, Frjt, FrjtLive, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, float]
COLOURS = {"lstm": "C0", "transformer": "C1", "scan": "C2"}
TASKS: Mapping[str, tuple[str, Task, int]] = {  # by the first part of their figures' names; up to what is trained
    "frjt": ("FRJT", Frjt(), 16),
    "live": ("frjt-live", FrjtLive(), 32),
    "s5": ("S5", S5(), 32),
}
DPI = 110
LAYER_SHADES = ("#fdd0a2", "#fdae6b", "#e6550d", "#7f2704")
LOSSES = {
    "raw": "exact, own length",
    "position": "exact, same frames",
    "truncated": "truncated at 16, same frames",
}


def points(values: Values, pattern: str) -> list[tuple[int, float]]:
    """Figures whose name matches, by the number in it."""
    found = ((re.fullmatch(pattern, name), value) for name, value in values.items())
    return sorted((int(match[1]), value) for match, value in found if match)


def draw_accuracy(values: Values) -> "Figure":
    """Accuracy against length per task and model; below it the window of last frames that explains its lower bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(2, 3, sharex="col")
    for column, (short, (title, task, trained)) in enumerate(TASKS.items()):
        accuracy, window = panels[0][column], panels[1][column]
        for kind, colour in COLOURS.items():
            _line(accuracy, points(values, rf"{short}_{kind}_(\d+)"), kind, colour)
            _line(window, points(values, rf"{short}_{kind}_(\d+)_window"), kind, colour)
        lengths = [length for length, _ in points(values, rf"{short}_lstm_(\d+)")]
        window.plot(
            lengths, [task.frames(length) for length in lengths], color="0.6", linestyle=":", label="all frames"
        )
        first, last = lengths[0] / 1.2, lengths[-1] * 1.2
        for axes in (accuracy, window):
            axes.set(xscale="log", xlim=(first, last))
            axes.axvspan(first, trained, color="0.93", zorder=0)
            axes.set_xticks(lengths, [str(length) for length in lengths])
            axes.minorticks_off()
        accuracy.set(title=f"{title}, trained on 1..{trained} (grey)", ylim=(0, 1.03))
        window.set(xlabel="length")
        window.set_yscale("symlog", linthresh=1)
        window.set_ylim(bottom=0)
    panels[0][0].set(ylabel="accuracy at the last frame")
    panels[1][0].set(ylabel="equivalent window, frames")
    panels[0][0].legend()
    panels[1][1].legend(loc="center right")  # between the lines, where it covers no point
    return figure


def draw_cost(values: Values, law: Values) -> "Figure":
    """Accuracy and critical length by layers, memory of a gradient against length, loss against trained length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained")
    deep, critical, memory, loss = figure.subplots(2, 2).flat
    _line(deep, points(values, r"deep_lstm_1_at_(\d+)"), "LSTM, 1 layer", COLOURS["lstm"])
    for layers, shade in zip((1, 2, 4, 8), LAYER_SHADES, strict=True):
        _line(deep, points(values, rf"deep_transformer_{layers}_at_(\d+)"), f"transformer, {layers}", shade)
    deep.axhline(0.9, color="0.6", linestyle=":")
    deep.set(title="S5, trained on 1..64", xlabel="length", ylabel="accuracy at the last frame", ylim=(0, 1.03))
    deep.set_xscale("log", base=2)
    _line(critical, points(values, r"critical_transformer_(\d+)"), "transformer", COLOURS["transformer"])
    critical.axhline(values["critical_lstm_1"], color=COLOURS["lstm"], linestyle="--", label="LSTM, 1 layer")
    critical.set(title="Critical length, S5", xlabel="layers", ylabel="longest with accuracy 0.9 and more")
    critical.set_xscale("log", base=2)
    critical.set_yscale("log", base=2)
    for side, label, colour in (
        ("streamed", "streamed", "C0"),
        ("keeping", "streamed, allocator keeps freed blocks", "C9"),
        ("full", "whole", "C3"),
    ):
        _line(memory, points(values, rf"{side}_(\d+)_mb"), label, colour)
    memory.set(title="Memory of a gradient", xlabel="frames", ylabel="MB above the baseline", ylim=0)
    memory.set_xscale("log", base=2)
    for kind, label in LOSSES.items():
        _line(loss, points(law, rf"loss_{kind}_(\d+)"), label, None)
    loss.set(title="Held-out loss, git history", xlabel="trained length", ylabel="nats per frame")
    loss.set_xscale("log", base=2)
    for axes in (deep, critical, memory, loss):
        axes.legend()
        axes.xaxis.set_major_formatter("{x:g}")
    critical.yaxis.set_major_formatter("{x:g}")
    return figure


def _line(axes: "Axes", found: list[tuple[int, float]], label: str, colour: str | None) -> None:
    axes.plot([x for x, _ in found], [y for _, y in found], marker="o", label=label, color=colour)


def _values(path: str) -> Values:
    values: Values = json.loads(Path(path).read_text())["values"]
    return values


def main(fbam: str, length: str, directory: str) -> None:
    draw_accuracy(_values(fbam)).savefig(Path(directory) / "fbam-accuracy.png", dpi=DPI)
    draw_cost(_values(fbam), _values(length)).savefig(Path(directory) / "fbam-cost.png", dpi=DPI)


if __name__ == "__main__":
    main(*sys.argv[1:])
