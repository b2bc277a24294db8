"""Held-out measurement: how often the policy solves tasks it was never trained on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
from rich.console import Console

from shoal.config import RunConfig, load_config
from shoal.errors import ConfigError, WaitError, WeightsError
from shoal.exchange.interfaces import Version
from shoal.models.load import Policy, load, read_weights
from shoal.rollout.engine import Request, TorchEngine
from shoal.rundir import RUN_FILE, RunDir, open_run
from shoal.tasks.build import build_source
from shoal.tasks.source import TaskSource, draw, score
from shoal.watch.metrics import read_steps

POLL_S = 0.1
# 97.5 % point of the normal distribution, for 95 % intervals.
Z = 1.959964


@dataclass(frozen=True, slots=True)
class Evaluation:
    """pass@1 on held-out tasks: sampled once each at the run's temperature, and decoded greedily."""

    tasks: int
    pass_at_1: float
    low: float
    high: float
    greedy: float
    failed: int
    """Answers that could not be scored; they count as wrong."""


def wilson(solved: int, tasks: int) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson 1927), good also near 0 and 1."""
    share = solved / tasks
    centre = (share + Z * Z / (2 * tasks)) / (1 + Z * Z / tasks)
    half = Z / (1 + Z * Z / tasks) * sqrt(share * (1 - share) / tasks + Z * Z / (4 * tasks * tasks))
    # At the ends the exact bounds are 0 and 1; rounding must not push the interval off the share itself.
    return min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))


def evaluate(policy: Policy, source: TaskSource, config: RunConfig, tasks: int) -> Evaluation:
    """Evaluates the same held-out tasks with the same noise for every version."""
    sampled, failed = _solved(policy, source, config, tasks, config.sampling.temperature)
    greedy, _ = _solved(policy, source, config, tasks, 0.0)
    low, high = wilson(sampled, tasks)
    return Evaluation(tasks, sampled / tasks, low, high, greedy / tasks, failed)


def _solved(policy: Policy, source: TaskSource, config: RunConfig, tasks: int, temperature: float) -> tuple[int, int]:
    engine = TorchEngine(policy, max_batch=config.workers.max_batch, max_len=config.max_len, temperature=temperature)
    asked = [source.task("heldout", index) for index in range(tasks)]
    seed = draw("eval", config.seed)
    prompts = [tuple(policy.encode(task.prompt)) for task in asked]
    requests = [Request(p, seed, i, config.sampling.max_new_tokens) for i, p in enumerate(prompts)]
    scores = [score(source, asked[c.index], policy.decode(c.tokens)) for c in engine.generate(requests)]
    return sum(s.reward is not None and s.reward >= 1.0 for s in scores), sum(s.reward is None for s in scores)


def start_evaluator(run: RunDir) -> None:
    """Evaluates the base model, the newest version now and then, and the last one; never holds up the trainer."""
    config = run.config
    torch.set_num_threads(config.eval.threads)
    with run.metrics("evaluator") as metrics:
        status = run.status("evaluator")
        try:
            status.working("loading the base model")
            policy, source, channel = (
                load(run.base_model, config.model.dtype),
                build_source(config.tasks),
                run.channel(),
            )
            done = _already_done(run)
            waited_from = time.monotonic()
            while config.steps not in done:
                version = channel.latest()
                if version is None or not _due(version.number, done, config):
                    status.waiting(f"a version to evaluate, after version {max(done)}", "trainer", config.wait_s)
                    if time.monotonic() - waited_from > config.wait_s:
                        raise WaitError(
                            f"evaluator: no new version within {config.wait_s:.0f} s; is the trainer running?"
                        )
                    time.sleep(POLL_S)
                    continue
                if not done:
                    version = channel.version(0) or version
                status.working(f"evaluating version {version.number}")
                result = _evaluate_version(run, policy, source, version)
                waited_from = time.monotonic()
                if result is None:
                    continue
                done.add(version.number)
                metrics.write(
                    "eval",
                    version=version.number,
                    step=version.number,
                    tasks=result.tasks,
                    pass_at_1=result.pass_at_1,
                    low=result.low,
                    high=result.high,
                    greedy=result.greedy,
                    failed=result.failed,
                )
            status.done(f"evaluated {len(done)} versions")
        except Exception as error:
            status.failed(str(error))
            raise


def _already_done(run: RunDir) -> set[int]:
    return {int(entry["version"]) for entry in read_steps(run.path / "metrics" / "evaluator.jsonl", "eval", "version")}


def _due(version: int, done: Sequence[int] | set[int], config: RunConfig) -> bool:
    return not done or version - max(done) >= config.eval.every or (version == config.steps and version not in done)


def _evaluate_version(run: RunDir, policy: Policy, source: TaskSource, version: Version) -> Evaluation | None:
    """None if the version is not there any more: the trainer is ahead, and a newer one is waiting."""
    try:
        folder = run.channel().fetch(version)
        policy.set_weights(read_weights(folder, run.config.model.dtype), f"version {version.number}")
    except WeightsError:
        return None
    return evaluate(policy, source, run.config, run.config.eval.tasks)


def evaluate_target(
    target: Path,
    config_path: Path | None,
    settings: list[str],
    version: int | None,
    tasks: int | None,
    console: Console,
) -> None:
    """What `shoal eval` does: a run's version, or a model directory with a config, measured and printed."""
    if (target / RUN_FILE).is_file():
        run = open_run(target)
        config, channel = run.config, run.channel()
        found = channel.latest() if version is None else channel.version(version)
        if found is None:
            raise WeightsError(f"run {target}: version {version} is not there; there are {channel.numbers()}")
        policy = load(run.base_model, config.model.dtype)
        policy.set_weights(read_weights(channel.fetch(found), config.model.dtype), f"version {found.number}")
        name = f"{target} version {found.number}"
    elif config_path is None:
        raise ConfigError(f"eval {target}: not a run directory; for a model directory give --config with its tasks")
    else:
        config, name = load_config(config_path, settings), str(target)
        policy = load(target, config.model.dtype)
    with console.status(f"evaluating {name}"):
        result = evaluate(policy, build_source(config.tasks), config, tasks or config.eval.tasks)
    console.print(
        f"{name}: pass@1 {result.pass_at_1:.3f} (95 % {result.low:.3f}..{result.high:.3f}) at temperature "
        f"{config.sampling.temperature}, greedy {result.greedy:.3f}, {result.tasks} held-out tasks",
        soft_wrap=True,
    )
