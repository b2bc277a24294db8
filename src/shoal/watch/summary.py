"""Summary of a finished run in a dozen numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.errors import ConfigError
from shoal.evals.stats import Estimate, compare
from shoal.telemetry.metrics import Entry, number, read_metrics, read_steps
from shoal.telemetry.status import role_order, seconds
from shoal.watch.contributions import Contribution, contributions_table, read_contributions
from shoal.watch.history import SUPERVISOR, run_directory
from shoal.watch.panels import NONE, clock, drawn
from shoal.watch.view import suite_line

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """A run so far. What was never measured is None. Base is version 0, final the last one evaluated after it."""

    name: str
    steps: int
    wall_s: float
    base_pass: float | None
    base_interval: Interval | None
    final_pass: float | None
    final_interval: Interval | None
    final_version: int | None
    gained: Estimate | None
    """Final minus base, task by task; None where their tasks or answers per task differ."""
    heldout_tasks: int | None
    best_reward: float | None
    samples_trained: int
    tokens_generated: int
    rollouts_refused: int
    banned: dict[str, str]
    """Nodes that were banned, each with the check that its last file did not pass."""
    worker_restarts: int
    wait_shares: dict[str, float]
    staleness_mean: float | None
    staleness_max: float | None
    mismatch_mean: float | None
    contributions: list[Contribution]
    drawn: list[tuple[str, str]]
    """Sources that a sampler weighs, as the last step left them."""
    first_rollout_s: float | None = None
    """From announcing a version to its first rollout; this and the next three are medians over versions."""
    full_batch_s: float | None = None
    verdict_p50_s: float | None = None
    verdict_p95_s: float | None = None
    suite: str | None = None
    """What the last version that was asked a suite did on it, and the base."""
    unverified: tuple[str, ...] = ()
    """Environments that are not played again: what they said and gave is their workers' word."""


def summarise(run_dir: Path) -> Summary:
    """Reads a run's metrics. A step done twice because of a kill counts once; generated tokens count each time."""
    folder = run_directory(run_dir) / "metrics"
    entries = {path.stem: list(read_metrics(path)) for path in folder.glob("*.jsonl")}
    steps = read_steps(folder / "trainer.jsonl", "step")
    evals = read_steps(folder / "evaluator.jsonl", "eval", key="version")
    base = next((entry for entry in evals if entry["version"] == 0), {})
    final = next((entry for entry in reversed(evals) if entry["version"] > 0), {})
    everything = [entry for role in entries.values() for entry in role]
    contributions = read_contributions(run_dir)
    names = {one.address: one.name for one in contributions}
    return Summary(
        name=run_dir.resolve().name,
        steps=len(steps),
        wall_s=wall_seconds(_numbers(everything, "time"), _starts(entries.get(SUPERVISOR, []))),
        base_pass=number(base, "pass_at_1"),
        base_interval=_interval(base),
        final_pass=number(final, "pass_at_1"),
        final_interval=_interval(final),
        final_version=final.get("version"),
        gained=_gained(base, final),
        heldout_tasks=None if (tasks := number(final or base, "tasks")) is None else int(tasks),
        best_reward=max(_numbers(steps, "reward"), default=None),
        samples_trained=int(sum(_numbers(steps, "samples"))),
        tokens_generated=int(sum(_numbers(_of(everything, "submission"), "tokens"))),
        rollouts_refused=len({str(entry.get("file")) for entry in _of(everything, "refused")}),
        banned={
            names.get(node := str(e.get("node"))) or node: str(e.get("check", "")) for e in _of(everything, "banned")
        },
        worker_restarts=len(_of(everything, "restart")),
        wait_shares=_wait_shares(entries),
        staleness_mean=_mean(_numbers(steps, "staleness_mean")),
        staleness_max=max(_numbers(steps, "staleness_max"), default=None),
        mismatch_mean=_mean(_numbers(steps, "mismatch")),
        contributions=contributions,
        drawn=drawn(steps[-1]) if steps else [],
        **_latencies(read_steps(folder / "coordinator.jsonl", "latency", key="version")),
        suite=_suite(read_steps(folder / "evaluator.jsonl", "suite", key="version")),
        unverified=_unverified(run_dir),
    )


def _latencies(entries: Sequence[Entry]) -> dict[str, float | None]:
    keys = ("first_rollout_s", "full_batch_s", "verdict_p50_s", "verdict_p95_s")
    found = {key: _numbers(entries, key) for key in keys}
    return {key: median(values) if values else None for key, values in found.items()}


def _unverified(run_dir: Path) -> tuple[str, ...]:
    from shoal.rundir import open_run  # imports numpy and pydantic, which views can do without

    try:
        return tuple(open_run(run_dir).config.unverified)
    except ConfigError:  # a run of another release, whose metrics can still be read
        return ()


def _suite(entries: Sequence[Entry]) -> str | None:
    if not entries:
        return None
    base = next((entry for entry in entries if entry["version"] == 0), {})
    return suite_line(entries[-1], base).removeprefix("suite ")


def wall_seconds(times: Sequence[float], starts: Sequence[float]) -> float:
    """The time a run was running: from each start to the last sign of life before the next one, added up.

    A session that was killed wrote no end, and the hours until somebody went on with it are not the run's.
    """
    if not times:
        return 0.0
    bounds = [*(sorted(starts) or [min(times)]), float("inf")]
    return sum(max((t for t in times if a <= t < b), default=a) - a for a, b in pairwise(bounds))


def _of(entries: Iterable[Entry], event: str) -> list[Entry]:
    return [entry for entry in entries if entry["event"] == event]


def _numbers(entries: Iterable[Entry], key: str) -> list[float]:
    return [value for entry in entries if (value := number(entry, key)) is not None]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _starts(supervisor: list[Entry]) -> list[float]:
    return _numbers(_of(supervisor, "start"), "time")


def _interval(entry: Entry) -> Interval | None:
    low, high = number(entry, "low"), number(entry, "high")
    return None if low is None or high is None else (low, high)


def _gained(base: Entry, final: Entry) -> Estimate | None:
    """Metrics of older runs do not have the right answers to each task."""
    samples, solved = final.get("samples"), final.get("solved")
    if not solved or samples != base.get("samples") or len(solved) != len(base.get("solved", [])):
        return None
    return compare([one / samples for one in base["solved"]], [one / samples for one in solved]).mean


def _wait_shares(entries: dict[str, list[Entry]]) -> dict[str, float]:
    shares = {role: _numbers(entries[role], "wait_share") for role in sorted(entries, key=role_order)}
    return {role: fmean(values) for role, values in shares.items() if values}


def print_summary(summary: Summary, console: Console) -> None:
    """Prints the summary as a table."""
    table = Table(title=Text(f"{summary.name}: summary"), title_style="bold", show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in _rows(summary):
        table.add_row(name, Text(value))
    console.print(table)
    if summary.contributions:
        console.print(contributions_table(summary.contributions))


def _rows(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "training steps", f"{summary.steps} in {clock(summary.wall_s)}"
    tasks = "" if summary.heldout_tasks is None else f", {summary.heldout_tasks} held-out tasks"
    version = NONE if summary.final_version is None else summary.final_version
    yield "pass@1 of the base", _share(summary.base_pass, summary.base_interval) + tasks
    yield f"pass@1 of version {version}", _share(summary.final_pass, summary.final_interval)
    if summary.base_pass is not None and summary.final_pass is not None:
        gain, interval = summary.final_pass - summary.base_pass, ""
        if summary.gained is not None:
            interval = f" [{summary.gained.low:+.3f}, {summary.gained.high:+.3f}], paired by task"
        yield "gained", f"{gain:+.3f}{interval}"
    if summary.suite is not None:
        yield "suite", summary.suite
    yield "best reward of a step", _figure(summary.best_reward, ".3f")
    yield "samples trained on", f"{summary.samples_trained:,}"
    yield "tokens generated", f"{summary.tokens_generated:,}"
    if summary.unverified:
        yield "unverified", f"{', '.join(summary.unverified)}: what was inserted and earned is the workers' word"
    yield from summary.drawn
    yield "refused by the trainer", str(summary.rollouts_refused)
    if summary.banned:
        yield "nodes banned", ", ".join(f"{node} ({check})" for node, check in sorted(summary.banned.items()))
    yield "roles restarted", str(summary.worker_restarts)
    yield "staleness", f"{_figure(summary.staleness_mean, '.2f')} mean, {_figure(summary.staleness_max, '.0f')} at most"
    yield "log-prob mismatch", f"{_figure(summary.mismatch_mean, '.2g')} mean"
    if summary.first_rollout_s is not None:
        yield (
            "version to first rollout",
            f"{seconds(summary.first_rollout_s)}, to a full batch {_took(summary.full_batch_s)}",
        )
    if summary.verdict_p50_s is not None:
        yield "upload to verdict", f"{seconds(summary.verdict_p50_s)} median, {_took(summary.verdict_p95_s)} p95"
    for role, share in summary.wait_shares.items():
        yield f"{role} waited", f"{share:.0%} of its time"


def _took(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _figure(value: float | None, spec: str) -> str:
    return NONE if value is None else format(value, spec)


def _share(value: float | None, interval: Interval | None) -> str:
    bounds = "" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    return _figure(value, ".3f") + bounds
