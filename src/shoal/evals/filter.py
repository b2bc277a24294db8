"""`shoal filter`: how often a model solves each task, and which tasks are worth training on.

A task that is always or never solved teaches nothing, and one that is solved once in a while teaches most: INTELLECT-2
kept those with a pass rate of 12.5 % to 50 % (arXiv:2505.07291). Tasks are measured a chunk at a time, by one process
or by several, and written down in their order: who measured a chunk is not to be seen in the file, and a run that was
stopped goes on with the first chunk that is not whole.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shoal.config import DeviceName
from shoal.errors import ConfigError, MissingExtraError
from shoal.evals.answers import Drawing
from shoal.evals.stats import wilson
from shoal.evals.worker_pool import CHUNK, Counts, chunks_of, measured
from shoal.extras import require
from shoal.files import disk_errors, locked, write_whole
from shoal.tasks.build import build_source, pinned
from shoal.tasks.source import Task, TaskSource, size_of
from shoal.tasks.sources.filtered import Header, Rated, Verdict, read_filtered

BAR = 40


def parse_keep(text: str) -> tuple[float, float]:
    """`0.125..0.5` as two numbers."""
    try:
        low, high = (float(part) for part in text.split(".."))
    except ValueError:
        raise ConfigError(f"--keep {text}: must read LOW..HIGH, as in 0.125..0.5") from None
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"--keep {text}: must be two shares in order, within 0..1")
    return low, high


def judge_rate(solved: int, samples: int, failed: int, keep: tuple[float, float]) -> Verdict:
    """What becomes of a task."""
    if failed == samples:
        return "failed"
    rate = solved / samples
    if rate < keep[0]:
        return "too hard"
    return "too easy" if rate > keep[1] else "kept"


def filter_source(
    header: Header,
    drawing: Drawing,
    count: int | None,
    out: Path,
    console: Console,
    workers: int = 1,
    device: DeviceName = "cpu",
) -> None:
    """What the command does: measures, writes `out`, a histogram beside it, and says what was dropped and why."""
    if out.exists():
        raise ConfigError(f"--out {out}: already exists; give another name or remove it")
    header = Header(pinned(header.tasks), header.model, header.samples, header.keep, header.temperature, header.seed)
    source = build_source(header.tasks)
    partial = out.with_name(out.name + ".partial")
    taken = f"--out {out}: another process is filtering into it"
    with disk_errors(out), locked(out.with_name(out.name + ".lock"), taken):
        rated = _already_rated(partial, header)
        tasks = _tasks(source, count)
        chunks = chunks_of(tasks)
        if rated:
            console.print(f"resuming after {len(rated)} tasks that were measured before", highlight=False)
        with (
            partial.open("ab") as file,
            _bar(console) as bar,
            measured(header, drawing, chunks[len(rated) // CHUNK :], workers, device) as found,
        ):
            row = bar.add_task("measuring", total=len(tasks), completed=len(rated))
            for counts in found:
                for task in tasks[len(rated) : len(rated) + CHUNK]:
                    rated.append(_rated(task.index, counts.get(task.index), header))
                    file.write(json.dumps(asdict(rated[-1])).encode() + b"\n")
                file.flush()
                bar.update(row, completed=len(rated))
        partial.replace(out)
        out.with_name(out.name + ".lock").unlink(missing_ok=True)
    text = histogram(rated, header.samples)
    write_whole(out.with_suffix(".txt"), text.encode())
    console.print(text, markup=False, highlight=False)
    try:
        draw_histogram(rated, header, out.with_suffix(".png"))
    except MissingExtraError as error:
        console.print(f"not drawn as a picture: {error}", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(rated), markup=False, highlight=False, soft_wrap=True)
    says = f'{out}: a source like any other; in a config: source = "filtered/{out}"'
    console.print(says, markup=False, highlight=False, soft_wrap=True)


def _already_rated(partial: Path, header: Header) -> list[Rated]:
    """What was written down before, whole chunks only; the file holds that and no more then."""
    rated: list[Rated] = []
    if partial.exists():
        found, rated = read_filtered(partial)
        if found != header:
            raise ConfigError(f"{partial}: was begun with another source, model or setting; remove it to start again")
        rated = rated[: len(rated) // CHUNK * CHUNK]
    lines = [header.to_json(), *(json.dumps(asdict(one)) for one in rated)]
    write_whole(partial, "".join(f"{line}\n" for line in lines).encode())
    return rated


def _tasks(source: TaskSource, count: int | None) -> list[Task]:
    size = size_of(source, "train")
    count = min(count, size) if count and size else count or size
    if count is None:
        raise ConfigError(f"filter {source.name}: has no end of tasks; give the number to measure with --tasks")
    return [source.task("train", index) for index in range(count)]


def _rated(index: int, counts: Counts | None, header: Header) -> Rated:
    if counts is None:
        return Rated(index, "duplicate", 0, 0, 0.0, 0.0, 1.0)
    solved, samples, failed = counts
    low, high = wilson(solved, samples)
    return Rated(index, judge_rate(solved, samples, failed, header.keep), solved, samples, solved / samples, low, high)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)


def counts(rated: Sequence[Rated], samples: int) -> list[int]:
    """How many tasks were solved 0, 1, ... times."""
    found = Counter(one.solved for one in rated if one.samples)
    return [found[solved] for solved in range(samples + 1)]


def histogram(rated: Sequence[Rated], samples: int) -> str:
    """Tasks by how often they were solved, as bars of text."""
    values = counts(rated, samples)
    most = max(values, default=0) or 1
    lines = [
        f"{solved / samples:6.1%} {'#' * round(BAR * value / most):{BAR}} {value}"
        for solved, value in enumerate(values)
    ]
    return "\n".join(["solved", *lines, ""])


def summary(rated: Sequence[Rated]) -> str:
    """What was kept and what was dropped, and why."""
    verdicts = Counter(one.verdict for one in rated)
    dropped = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common() if verdict != "kept")
    return f"{verdicts['kept']} of {len(rated)} tasks kept; dropped: {dropped or 'none'}"


def draw_histogram(rated: Sequence[Rated], header: Header, path: Path) -> None:
    """The same as a picture."""
    require("plot", "histogram")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = counts(rated, header.samples)
    rates = [solved / header.samples for solved in range(header.samples + 1)]
    kept = [header.keep[0] <= rate <= header.keep[1] for rate in rates]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.bar(rates, values, width=0.8 / header.samples, color=["tab:blue" if keep else "lightgrey" for keep in kept])
    axes.set_xlabel("share of answers that are right")
    axes.set_ylabel("tasks")
    axes.set_title(f"{sum(v for v, k in zip(values, kept, strict=True) if k)} of {len(rated)} tasks kept")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
