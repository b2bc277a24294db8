"""Draws what a slow key gains by the share of answers that it fakes, with the defaults and with one answer per file.

Usage: `python -m benchmarks.validation.economics_plot OUT.png`.
"""

import sys
from pathlib import Path

from benchmarks.validation.economics import BEFORE, LONG, default_config
from shoal.validate.economics import Sampling, answers_per_file, gain_of_file


def draw(path: Path) -> None:
    """Gain per file with nothing at stake, for fakes of the usual length and for long ones."""
    from matplotlib.figure import Figure

    config = default_config()
    answers = answers_per_file(config)
    now = Sampling.of(config.audit, answers)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    shares = [k / answers for k in range(1, answers + 1)]
    for sampling, colour, label in ((BEFORE, "tab:red", "one answer per file"), (now, "tab:green", "the defaults")):
        for length, style, how in ((LONG, "-", f"{LONG:g} times as long"), (1.0, "--", "as long as honest answers")):
            gains = [gain_of_file(sampling, share, length) for share in shares]
            axes.plot(shares, gains, style, color=colour, label=f"{label}, fakes {how}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("share of the file's answers that are fakes")
    axes.set_ylabel("gain per file, in honest files' pay")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
