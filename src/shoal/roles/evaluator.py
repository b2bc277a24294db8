"""The evaluator: measures versions on held-out tasks while training goes on."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from rich.console import Console

from shoal.config import RunConfig
from shoal.devices import resolve, set_up
from shoal.errors import ModelError, WeightsError
from shoal.evals.answers import Drawing, answer_tasks
from shoal.evals.kept_versions import Chosen
from shoal.evals.stats import mean_of_tasks, pass_at_k, rank_correlation
from shoal.evals.suite import SuiteOf
from shoal.evals.suite_catalogue import find_suite
from shoal.files import locked
from shoal.models.load import Policy, load
from shoal.models.version_reader import VersionReader
from shoal.protocol.stores import Version
from shoal.rundir import TAKEOVER_S, RunDir
from shoal.tasks.build import build_source
from shoal.tasks.environments.source import environments_of
from shoal.tasks.length import budgeted, target_of
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Judge, TaskSource, draw
from shoal.telemetry.metrics import MetricsWriter, read_steps
from shoal.telemetry.status import StatusFile
from shoal.telemetry.waiting import Patience

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """pass@1 on held-out tasks: sampled at the run's temperature, and decoded greedily."""

    tasks: int
    pass_at_1: float
    low: float
    high: float
    greedy: float
    failed: int
    """Answers that could not be scored; they count as wrong."""
    samples: int = 1
    pass_at: dict[int, float] = field(default_factory=dict)
    """pass@k for other k than 1, where tasks are answered more than once."""
    lengths: dict[str, float] = field(default_factory=dict)
    """Mean tokens of the sampled answers by their target, where the run has length budgets."""
    length_rank: float | None = None
    """Rank correlation of targets and lengths over these answers."""
    solved: list[int] = field(default_factory=list)
    """Right answers to each task, so that two versions can be compared task by task."""


def evaluate(policy: Policy, source: TaskSource, judge: Judge, config: RunConfig, tasks: int) -> Evaluation:
    """Evaluates the same held-out tasks with the same noise for every version."""
    targets = [target_of(config.length, "eval", config.seed, index) for index in range(tasks)]
    asked = [budgeted(source.task("heldout", index), targets[index], config.length) for index in range(tasks)]
    samples, sampling = config.eval.samples, config.sampling
    drawing = Drawing(
        samples,
        sampling.temperature,
        sampling.max_new_tokens,
        sampling.max_prompt_tokens,
        config.workers.max_batch,
        draw("eval", config.seed),
        frozenset(environments_of(config.tasks)),
        config.turns,
    )
    sampled = list(answer_tasks(policy, asked, judge, "heldout", drawing))
    greedy = answer_tasks(policy, asked, judge, "heldout", replace(drawing, samples=1, temperature=0.0))
    found = mean_of_tasks([one.solved / samples for one in sampled])
    ks = [k for k in (2, 4, 8, 16, 32, 64) if k <= samples]
    return Evaluation(
        tasks,
        found.value,
        found.low,
        found.high,
        sum(one.solved for one in greedy) / tasks,
        sum(one.failed for one in sampled),
        samples,
        {k: mean_of_tasks([pass_at_k(samples, one.solved, k) for one in sampled]).value for k in ks},
        *by_target(
            [target for target in targets for _ in range(samples)], [count for one in sampled for count in one.tokens]
        ),
        solved=[one.solved for one in sampled],
    )


def by_target(targets: Sequence[int | None], lengths: Sequence[int]) -> tuple[dict[str, float], float | None]:
    """Mean length by target, and how well the targets order the lengths; nothing where there are no targets."""
    pairs = sorted((target, length) for target, length in zip(targets, lengths, strict=True) if target is not None)
    if not pairs:
        return {}, None
    means = {str(target): fmean(length for _, length in own) for target, own in groupby(pairs, key=itemgetter(0))}
    return means, rank_correlation(*zip(*pairs, strict=True))


def start_evaluator(run: RunDir) -> None:
    """Evaluates the base model, the versions that were chosen or the newest now and then, and the last one.

    It never holds up the trainer: it follows what is published, and puts aside what it cannot look at yet.
    """
    config = run.config
    device = set_up(config.device_of("eval"), config.eval.threads)
    taken = f"evaluator: another one is at work in {run.path}; one is enough"
    suite = find_suite(config.eval.suite) if config.eval.suite else None
    with (
        locked(run.path / "locks" / "evaluator", taken, wait_s=TAKEOVER_S),
        run.role("evaluator") as (status, metrics),
        Scorer(config.tasks, turns=config.turns) as judge,
        ExitStack() as stack,
    ):
        status.working("loading the base model")
        policy, source = load(run.base_model, config.model.dtype, device), build_source(config.tasks)
        reader = VersionReader(run.channel(), config.model.dtype)
        asked = stack.enter_context(SuiteOf(suite)) if suite else None
        done = _already_done(run)
        chosen = _chosen(run, done)
        if chosen:
            stack.enter_context(chosen)
        while not _is_over(run, done, chosen):
            following = partial(_next_chosen, run, chosen) if chosen else partial(_next_version, run)
            version = following(done, status, metrics)
            if version is None:
                continue
            status.working(f"evaluating version {version.number}")
            if _set_weights(run, policy, reader, version, chosen):
                result = evaluate(policy, source, judge, config, config.eval.tasks)
                says = {"version": version.number, "step": version.number, "root": version.root}
                if asked:
                    status.working(f"asking version {version.number} the suite {config.eval.suite}")
                    metrics.write("suite", **says, **asked.measure(policy))
                metrics.write("eval", **says, **asdict(result), **status.shares())
                done.add(version.number)
                if chosen:
                    chosen.drop(version.number)
        status.done(f"evaluated {len(done)} versions")


def _is_over(run: RunDir, done: set[int], chosen: Chosen | None) -> bool:
    return chosen.is_over if chosen else max(done, default=-1) >= run.config.steps


def _chosen(run: RunDir, done: set[int]) -> Chosen | None:
    """The versions of `eval.at`, the first and the last, but for those that were evaluated before."""
    config = run.config
    if not config.eval.at:
        return None
    numbers = {0, config.steps, *(number for number in config.eval.at if number <= config.steps)}
    return Chosen(run.path / "weights", run.path / "evals", sorted(numbers - done))


def _next_chosen(
    run: RunDir, chosen: Chosen, done: set[int], status: StatusFile, metrics: MetricsWriter
) -> Version | None:
    """Waits for the next of them; None if all that are left came and went while no evaluator was there."""
    patience = Patience(metrics, run.config.patience_s)
    while True:
        if (version := chosen.first()) is not None:
            return version
        for number in chosen.missed():
            metrics.write("note", text=f"version {number} was gone before an evaluator was there; it is left out")
            chosen.drop(number)
        if chosen.is_over:
            return None
        what = f"a version to evaluate, after {len(done)} of them"
        status.waiting(what, "trainer", None)
        patience.waits(what)
        time.sleep(POLL_S)


def _already_done(run: RunDir) -> set[int]:
    """Versions evaluated before, but for those that were retracted since: other weights may have their number now."""
    channel = run.channel()
    newest = channel.latest()
    entries = read_steps(run.path / "metrics" / "evaluator.jsonl", "eval", "version")
    done = set()
    for entry in entries:
        number = int(entry["version"])
        found = channel.version(number)
        if (found is None or found.root == entry.get("root")) and newest is not None and number <= newest.number:
            done.add(number)
    return done


def _next_version(run: RunDir, done: set[int], status: StatusFile, metrics: MetricsWriter) -> Version:
    """Waits for the next version to evaluate: the base model first, then the newest once enough steps have passed."""
    config, channel = run.config, run.channel()
    patience = Patience(metrics, config.patience_s)
    while True:
        newest = channel.latest()
        if newest is not None:
            if not done:
                return channel.version(0) or newest
            if newest.number >= min(max(done) + config.eval.every, config.steps):
                return newest
        what = f"a version to evaluate, after {len(done)} of them"
        status.waiting(what, "trainer", None)
        patience.waits(what)
        time.sleep(POLL_S)


def _set_weights(run: RunDir, policy: Policy, reader: VersionReader, version: Version, chosen: Chosen | None) -> bool:
    """False if the version was taken away meanwhile; an error if it is there and damaged."""
    channel = run.channel()
    try:
        folder = chosen.fetch(version) if chosen else channel.fetch(version)
        policy.set_weights(reader.read(folder), f"version {version.number}")
    except (WeightsError, ModelError):
        if channel.version(version.number) == version:
            raise
        return False
    return True


def evaluate_target(
    target: Path, run: RunDir | RunConfig, version: int | None, tasks: int | None, console: Console
) -> None:
    """What `shoal eval` does: a run's version, or a model directory with a config, measured and printed."""
    config = run.config if isinstance(run, RunDir) else run
    device = resolve(config.device_of("eval"))
    if isinstance(run, RunDir):
        channel = run.channel()
        found = channel.latest() if version is None else channel.version(version)
        if found is None:
            raise WeightsError(f"run {target}: version {version} is not there; there are {channel.numbers()}")
        policy = load(run.base_model, config.model.dtype, device)
        reader = VersionReader(channel, config.model.dtype)
        policy.set_weights(reader.read(channel.fetch(found)), f"version {found.number}")
        name = f"{target} version {found.number}"
    else:
        name = str(target)
        policy = load(target, config.model.dtype, device)
    source = build_source(config.tasks)
    with console.status(f"evaluating {name}"), Scorer(config.tasks, turns=config.turns) as judge:
        result = evaluate(policy, source, judge, config, tasks or config.eval.tasks)
    others = "".join(f", pass@{k} {value:.3f}" for k, value in result.pass_at.items())
    console.print(
        f"{name}: pass@1 {result.pass_at_1:.3f} (95 % {result.low:.3f}..{result.high:.3f}) at temperature "
        f"{config.sampling.temperature}{others}, greedy {result.greedy:.3f}, {result.tasks} held-out tasks",
        soft_wrap=True,
    )
    if result.length_rank is not None:
        means = ", ".join(f"{target}: {length:.1f}" for target, length in result.lengths.items())
        console.print(
            f"mean tokens by target: {means}; rank correlation of target and length {result.length_rank:.3f}",
            highlight=False,
            soft_wrap=True,
        )
