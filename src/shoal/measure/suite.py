"""`shoal eval --suite`: a model, or two side by side, on the same held-out tasks with the same noise."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from shoal.measure.answers import Answered, Drawing, answer_tasks
from shoal.measure.stats import Difference, Estimate, compare, mean_of_tasks, pass_at_k
from shoal.measure.suites import Suite
from shoal.models.load import Policy, load
from shoal.tasks.build import build_source, split_up
from shoal.tasks.scorer import Scorer
from shoal.tasks.source import Judge, TaskSource

ALL = "all"


@dataclass(frozen=True, slots=True)
class Result:
    """One model on one source: pass@k for some k, and the mean reward of all answers with each task counted once."""

    source: str
    tasks: int
    samples: int
    pass_at: dict[int, Estimate]
    average: Estimate
    failed: int
    """Answers that could not be scored; they count as wrong."""
    tokens: float


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


def _count(source: TaskSource, most: int) -> int:
    """How many tasks are asked: one asked again would be no second task, and make intervals too narrow."""
    size: int | None = getattr(source, "heldout_size", None)
    return most if size is None else min(most, size)


def results_of(answered: Sequence[Answered]) -> list[Result]:
    """One for each source, and one for all of them if there are several."""
    parts = [(name, list(part)) for name, part in groupby(answered, key=lambda one: one.task.source)]
    results = [_result(name, part) for name, part in parts]
    return results if len(parts) == 1 else [*results, _result(ALL, answered)]


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
    )


def differences(first: Sequence[Answered], second: Sequence[Answered]) -> dict[str, Difference]:
    """By how much the second model's pass@1 is above the first's, source by source and over all."""
    pairs = list(zip(first, second, strict=True))
    parts = [(name, list(part)) for name, part in groupby(pairs, key=lambda pair: pair[0].task.source)]
    if len(parts) > 1:
        parts.append((ALL, pairs))
    return {name: compare([_rate(a) for a, _ in part], [_rate(b) for _, b in part]) for name, part in parts}


def _rate(answered: Answered) -> float:
    return answered.solved / len(answered.scores)


def evaluate_suite(models: Sequence[Path], suite: Suite, dtype: str, as_json: bool, console: Console) -> None:
    """What the command does with one model, or with two."""
    errors = Console(stderr=True)
    with Scorer(suite.sources) as judge:
        measured = [_measured(model, suite, dtype, judge, errors) for model in models]
    results = [results_of(answered) for answered in measured]
    apart = differences(measured[0], measured[1]) if len(measured) == 2 else {}
    if as_json:
        console.out(to_json(models, suite, results, apart), highlight=False)
    else:
        console.print(table_of(models, suite, results, apart))


def _measured(model: Path, suite: Suite, dtype: str, judge: Judge, errors: Console) -> list[Answered]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        row = bar.add_task(f"{model.name} on {suite.name}", total=None)
        return measure_suite(
            load(model, dtype), suite, judge, lambda done, total: bar.update(row, completed=done, total=total)
        )


def to_json(
    models: Sequence[Path], suite: Suite, results: Sequence[Sequence[Result]], apart: dict[str, Difference]
) -> str:
    fields = {
        "suite": suite.name,
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
    table = Table(
        title=f"{suite.name}: {suite.tasks} held-out tasks a source, {suite.samples} answers each, 95 % intervals"
    )
    table.add_column("source")
    last = max(results[0][0].pass_at)
    for model in models:
        table.add_column(f"{model.name}\npass@1")
        if last > 1:
            table.add_column(f"pass@{last}")
        table.add_column(f"average@{suite.samples}")
    if apart:
        table.add_column("difference in pass@1")
    for row in zip(*results, strict=True):
        cells = [row[0].source]
        for result in row:
            cells.append(str(result.pass_at[1]))
            if last > 1:
                cells.append(str(result.pass_at[last]))
            cells.append(str(result.average))
        if apart:
            cells.append(str(apart[row[0].source]))
        table.add_row(*cells, end_section=row[0].source == ALL)
    return table
