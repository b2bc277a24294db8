"""`shoal eval --suite`: a model, or two side by side, on the same held-out tasks with the same noise."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from shoal.devices import CPU
from shoal.evals.answers import Answered, Drawing, answer_tasks
from shoal.evals.stats import Difference, Estimate, compare, mean_of_tasks, pass_at_k
from shoal.evals.suite_catalogue import Suite
from shoal.models.load import Policy, load
from shoal.tasks.build import build_source, pinned, split_up
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Judge, TaskSource, size_of
from shoal.text import one_line

ALL = "all"


@dataclass(frozen=True, slots=True)
class Result:
    """One model on a part of a suite: pass@k for some k, and the mean reward, each task counted once."""

    source: str
    """A source, a level of one, a level of all, or all."""
    tasks: int
    samples: int
    pass_at: dict[int, Estimate]
    average: Estimate
    failed: int
    """Answers that could not be scored; they count as wrong."""
    tokens: float
    parts: dict[str, Estimate]
    """Means of what rewards are made of, where they are made of several things."""


def measure_suite(policy: Policy, suite: Suite, judge: Judge, progress: Callable[[int, int], None]) -> list[Answered]:
    """Every task of the suite with its answers, source after source; `progress` hears (done, of all)."""
    drawing = Drawing(suite.samples, suite.temperature, suite.max_new_tokens, suite.max_prompt_tokens, seed=suite.seed)
    sources = [build_source([line]) for line in split_up(suite.sources)]
    tasks = [source.task("heldout", index) for source in sources for index in range(_count(source, suite.tasks))]
    answered: list[Answered] = []
    for one in answer_tasks(policy, tasks, judge, "heldout", drawing):
        answered.append(one)
        progress(len(answered), len(tasks))
    return answered


def _count(source: TaskSource, max_tasks: int) -> int:
    """How many tasks are asked: asking one twice would count as two tasks and make intervals too narrow."""
    size = size_of(source, "heldout")
    return max_tasks if size is None else min(max_tasks, size)


def groups_of(suite: Suite, names: Sequence[str]) -> dict[str, list[int]]:
    """Which tasks, by the names of their sources, make up which row: sources and their levels, levels, and all.

    `chain_sum@2` is level 2 of `chain_sum`. Where several sources have levels, each level of all of them is a row.
    """
    levels = {str(line.name): line.difficulty for line in split_up(suite.sources) if line.name and "@" in line.name}
    rows: dict[str, list[int]] = {}
    sums: dict[str, list[int]] = {}
    across: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        rows.setdefault(name, []).append(place)
        if name in levels:
            sums.setdefault(name.rpartition("@")[0], []).append(place)
            across.setdefault(f"difficulty {levels[name]}", []).append(place)
    for name, places in sums.items():
        if name not in rows and len({names[place] for place in places}) > 1:
            rows[name] = places
    if len(sums) > 1:
        rows |= across
    return rows if len(rows) == 1 else rows | {ALL: list(range(len(names)))}


def results_of(suite: Suite, answered: Sequence[Answered]) -> list[Result]:
    """One for each row."""
    rows = groups_of(suite, [one.task.source for one in answered])
    return [_result(name, [answered[place] for place in places]) for name, places in rows.items()]


def _result(name: str, answered: Sequence[Answered]) -> Result:
    samples = min(len(one.scores) for one in answered)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
    return Result(
        source=name,
        tasks=len(answered),
        samples=samples,
        pass_at={k: mean_of_tasks([pass_at_k(len(a.scores), a.solved, k) for a in answered]) for k in ks},
        average=mean_of_tasks([one.mean_reward for one in answered]),
        failed=sum(one.failed for one in answered),
        tokens=sum(sum(one.tokens) for one in answered) / sum(len(one.tokens) for one in answered),
        parts=_parts(answered),
    )


def _parts(answered: Sequence[Answered]) -> dict[str, Estimate]:
    """What all answers have; one without a reward has 0 of each."""
    scored = [score for one in answered for score in one.scores if score.reward is not None]
    names = [name for name in (scored[0].parts if scored else ()) if all(name in score.parts for score in scored)]
    return {
        name: mean_of_tasks([fmean(score.parts.get(name, 0.0) for score in one.scores) for one in answered])
        for name in names
    }


def differences(suite: Suite, first: Sequence[Answered], second: Sequence[Answered]) -> dict[str, Difference]:
    """By how much the second model's pass@1 is above the first's, row by row."""
    rows = groups_of(suite, [one.task.source for one in first])
    return {
        name: compare([_rate(first[place]) for place in places], [_rate(second[place]) for place in places])
        for name, places in rows.items()
    }


def _rate(answered: Answered) -> float:
    return answered.solved / len(answered.scores)


class SuiteOf:
    """A suite that is asked of one version after the other, with the same tasks, noise and scorer."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite.model_copy(update={"sources": pinned(suite.sources)})
        self._judge = Scorer(self._suite.sources)

    def measure(self, policy: Policy) -> dict[str, Any]:
        """What metrics say of a version: the row for all, and pass@1 of each row."""
        answered = measure_suite(policy, self._suite, self._judge, lambda *_: None)
        results = results_of(self._suite, answered)
        whole = results[-1]
        first = whole.pass_at[1]
        return {
            "suite": self._suite.name,
            "tasks": whole.tasks,
            "samples": whole.samples,
            "pass_at_1": first.value,
            "low": first.low,
            "high": first.high,
            "pass_at": {k: estimate.value for k, estimate in whole.pass_at.items() if k > 1},
            "average": whole.average.value,
            "rows": {result.source: result.pass_at[1].value for result in results},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._judge.close()


def evaluate_suite(
    models: Sequence[Path], suite: Suite, dtype: str, as_json: bool, console: Console, device: torch.device = CPU
) -> None:
    """What the command does with one model, or with two."""
    errors = Console(stderr=True)
    # What is asked of the one is asked of the other, whatever becomes of the files meanwhile.
    suite = suite.model_copy(update={"sources": pinned(suite.sources)})
    with Scorer(suite.sources) as judge:
        measured = [_measured(model, suite, dtype, device, judge, errors) for model in models]
    for model, answered in zip(models, measured, strict=True):
        for text in failures(answered):
            errors.print(f"{model.name}: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    results = [results_of(suite, answered) for answered in measured]
    apart = differences(suite, measured[0], measured[1]) if len(measured) == 2 else {}
    if as_json:
        console.out(to_json(models, suite, results, apart), highlight=False)
    else:
        console.print(table_of(models, suite, results, apart))


def failures(answered: Sequence[Answered]) -> list[str]:
    """What is to be said of answers that no scorer could judge, a sentence for each source that has some."""
    by_source: dict[str, list[Answered]] = {}
    for one in answered:
        by_source.setdefault(one.task.source, []).append(one)
    return [
        f"{source}: {count} of {sum(len(one.scores) for one in asked)} answers could not be scored and count as wrong; "
        f"the first, to task {first.task.index}: {one_line(error)}"
        for source, asked in by_source.items()
        if (count := sum(one.failed for one in asked))
        for first in [next(one for one in asked if one.failed)]
        for error in [next(score.error for score in first.scores if score.reward is None)]
    ]


def _measured(
    model: Path, suite: Suite, dtype: str, device: torch.device, judge: Judge, errors: Console
) -> list[Answered]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        row = bar.add_task(f"{model.name} on {suite.name}", total=None)
        return measure_suite(
            load(model, dtype, device), suite, judge, lambda done, total: bar.update(row, completed=done, total=total)
        )


def to_json(
    models: Sequence[Path], suite: Suite, results: Sequence[Sequence[Result]], apart: dict[str, Difference]
) -> str:
    fields = {
        "suite": suite.name,
        "settings": suite.model_dump(mode="json", exclude={"name", "sources"}),
        "sources": [source.model_dump(mode="json", exclude_defaults=True) for source in suite.sources],
        "models": [
            {"model": str(model), "results": [asdict(result) for result in found]}
            for model, found in zip(models, results, strict=True)
        ],
        "differences": {name: asdict(difference) for name, difference in apart.items()},
    }
    return json.dumps(fields, indent=1)


def table_of(
    models: Sequence[Path], suite: Suite, results: Sequence[Sequence[Result]], apart: dict[str, Difference]
) -> Table:
    table = Table(title=f"{suite.name}: held-out tasks, {suite.samples} answers each, 95 % intervals")
    table.add_column("source")
    table.add_column("tasks", justify="right")
    last = max(results[0][0].pass_at)
    for model in models:
        table.add_column(f"{model.name}\npass@1")
        if last > 1:
            table.add_column(f"pass@{last}")
        table.add_column(f"average@{suite.samples}")
    if apart:
        table.add_column("difference in pass@1")
    for row in zip(*results, strict=True):
        cells = [row[0].source, str(row[0].tasks)]
        for result in row:
            cells += _cells(result, last)
        if apart:
            cells.append(str(apart[row[0].source]))
        table.add_row(*cells)
        for part in row[0].parts:
            blank = ["", ""] if last > 1 else [""]
            means = [cell for result in row for cell in (*blank, str(result.parts.get(part, "")))]
            table.add_row(f"  {part}", "", *means, style="dim")
    return table


def _cells(result: Result, last: int) -> list[str]:
    shown = [1, last] if last > 1 else [1]
    return [*(str(result.pass_at[k]) for k in shown), str(result.average)]
