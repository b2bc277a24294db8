"""Real runs on this machine, and what a simulation says of them beforehand.

Rates come from three calibration runs, which are not among those that are predicted. In two of them trainer and worker
take turns (async level 0), with steps of two sizes: that gives what each role takes alone, per step and per answer, and
the CPU time of all roles beyond training and generating, which takes cores from both when they are at work at once. In
the third run they are: how many cores all have between them is what makes its simulated training as slow as it was.
What is left of a step is not measured part by part: it is fitted so that the simulations of these runs take about as
long as they took, because a simulation also waits where a run does, such as between two requests for a lease. Each fit
changes what the other one was fitted to, so both are done in turn `ROUNDS` times; how far the simulations of the
calibration runs are from them after that is `fit_error`. What is predicted has other numbers of workers, groups and
async levels.
"""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.configs import changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.roles import Roles
from shoal.config import RunConfig
from shoal.coordinator.policy import Terms
from shoal.rundir import RunDir, prepare_run
from shoal.simulate.inputs import Inputs, Machines, Services, Spread, Training
from shoal.simulate.report import report_of
from shoal.simulate.simulation import Simulation
from shoal.telemetry.metrics import Entry, read_metrics

# The first steps load models and compile kernels.
WARM = 4
HALVINGS = 8
ROUNDS = 2
# Simulations per prediction.
SEEDS = 3
SHARED = {
    "sampling.group_size": 16,
    "sampling.max_new_tokens": 12,
    "train.lr": 1e-6,  # answers stay as they are: rates of one step are rates of all
    "train.online_filter": False,
    "train.loss.kl_coef": 0.0,
    "workers.max_batch": 64,
    "audit.rate": 0.0,
}
IN_TURN = {"async_level": 0, "train.groups_per_step": 24, "workers.count": 1, "workers.groups_per_submission": 24}
SMALLER = {**IN_TURN, "train.groups_per_step": 12, "workers.groups_per_submission": 12}
CALIBRATED = {"smaller": SMALLER, "in-turn": IN_TURN}
AT_ONCE = {**IN_TURN, "async_level": 2, "workers.groups_per_submission": 12}
PREDICTED: dict[str, dict[str, Any]] = {
    "turns": {"async_level": 0, "train.groups_per_step": 48, "workers.count": 1, "workers.groups_per_submission": 48},
    "one_ahead": {
        "async_level": 1,
        "train.groups_per_step": 40,
        "workers.count": 1,
        "workers.groups_per_submission": 20,
    },
    "two_workers": {
        "async_level": 2,
        "train.groups_per_step": 48,
        "workers.count": 2,
        "workers.groups_per_submission": 16,
    },
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One real run: seconds per step, and the rates of its roles."""

    step_s: float
    train_s: float
    samples: float
    """Per step."""
    generate_s: float
    """Per answer, while an engine was at work."""
    tokens: float
    """Per answer."""
    rest_s: float
    """Of a step in which neither trainer nor worker was at work: sending, judging, publishing and loading."""
    beside_s: float
    """CPU seconds per step of all roles, beyond training and generating."""


def measure(base: Path, settings: dict[str, Any], steps: int, path: Path, progress: Progress) -> Measured:
    """Runs a config for so many steps after the first ones."""
    config = local_config(base, settings, steps)
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        roles.steps(WARM, progress.detail)
        before = sum(roles.cpu().values())
        entries = roles.steps(steps, progress.detail)
        cpu_s = (sum(roles.cpu().values()) - before) / steps
    return measured(entries, submissions_of(run, config), WARM, cpu_s)


def local_config(base: Path, settings: dict[str, Any], steps: int) -> RunConfig:
    identity = {"name": "bench-simulate", "steps": steps + WARM, "model.source": str(base)}
    return changed(laptop_config(), {**SHARED, **identity, **settings})


def submissions_of(run: RunDir, config: RunConfig) -> list[Entry]:
    found = []
    for number in range(config.workers.count):
        entries = read_metrics(run.path / "metrics" / f"worker-{number}.jsonl")
        found += [entry for entry in entries if entry["event"] == "submission"]
    return found


def measured(steps: Sequence[Entry], submissions: Sequence[Entry], first: int, cpu_s: float) -> Measured:
    """From the trainer's steps, the workers' files from step `first` on, and CPU seconds of all roles per step."""
    late = [entry for entry in submissions if entry["step"] >= first]
    step_s = (steps[-1]["time"] - steps[0]["time"]) / (len(steps) - 1)
    train_s = statistics.fmean(entry["train_s"] for entry in steps)
    samples = statistics.fmean(entry["samples"] for entry in steps)
    answers = sum(entry["samples"] for entry in late)
    generate_s = sum(entry["tokens"] / entry["tokens_per_s"] for entry in late) / answers
    tokens = sum(entry["tokens"] for entry in late) / answers
    work_s = train_s + samples * generate_s
    return Measured(
        step_s, train_s, samples, generate_s, tokens, max(0.0, step_s - work_s), beside_s=max(0.0, cpu_s - work_s)
    )


@dataclass(frozen=True, slots=True)
class PerStep:
    """Seconds of a step: a fixed part, and one per answer."""

    fixed_s: float
    answer_s: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> "PerStep":
        """The line through two runs, each as answers and seconds; no part of it is below 0."""
        (few, short), (many, long) = small, large
        answer_s = min(max(0.0, (long - short) / (many - few)), long / many)
        return cls(long - answer_s * many, answer_s)


@dataclass(frozen=True, slots=True)
class Rates:
    """What predictions are made of."""

    training: PerStep
    upload_s: float
    """Per answer: what a file takes longer with more of them, scoring and judging included."""
    generate_s: float
    """Per answer."""
    tokens: float
    """Per answer."""
    beside: PerStep
    """CPU seconds of all roles beyond training and generating."""
    load_s: float = 0.0
    """For which a worker generates nothing because of a new version."""
    latency_s: float = 0.0
    """Of a step beyond that: the verdict and publishing."""
    cores: float = math.inf
    at_bound: frozenset[str] = frozenset()
    """What was fitted and is at an end of its range: no value in it makes the simulation take as long as the run."""

    @classmethod
    def of(cls, small: Measured, large: Measured) -> "Rates":
        """Of each role alone, from two runs in which trainer and worker take turns."""
        training = PerStep.through((small.samples, small.train_s), (large.samples, large.train_s))
        rest = PerStep.through((small.samples, small.rest_s), (large.samples, large.rest_s))
        beside = PerStep.through((small.samples, small.beside_s), (large.samples, large.beside_s))
        generate_s = (small.generate_s + large.generate_s) / 2
        return cls(training, rest.answer_s, generate_s, large.tokens, beside)

    def fitted(self, in_turn: Sequence["Run"], at_once: "Run") -> "Rates":
        """With latency, cores and what a new version costs, each fitted again after the others have changed."""
        rates = self
        for _ in range(ROUNDS):
            rates = rates.with_cores(*at_once).with_latency(in_turn)
        return rates

    def with_cores(self, at_once: Measured, config: RunConfig) -> "Rates":
        """With the cores that make training as slow as it was while a worker was at it too, and what a new version
        costs a worker."""

        def at(cores: float) -> Rates:
            rates = replace(self, cores=cores)
            load = found_at(lambda load_s: predict(replace(rates, load_s=load_s), config).step_s, at_once.step_s)
            return replace(rates, load_s=load.value)._noted("load", load)

        most = float(os.cpu_count() or 1)
        idle = found_at(lambda idle: predict(at(most - idle), config).train_s, at_once.train_s, most - 1)
        return at(most - idle.value)._noted("cores", idle)

    def with_latency(self, runs: Sequence["Run"]) -> "Rates":
        """With the latency that makes the runs in turn take as long as they took, on average."""

        def ratio(latency_s: float) -> float:
            rates = replace(self, latency_s=latency_s)
            return statistics.fmean(predict(rates, config).step_s / run.step_s for run, config in runs)

        latency = found_at(ratio, 1.0)
        return replace(self, latency_s=latency.value)._noted("latency", latency)

    def _noted(self, name: str, found: "Found") -> "Rates":
        others = self.at_bound - {name}
        return replace(self, at_bound=others | {name} if found.is_at_bound else others)

    def fit_error(self, runs: Sequence["Run"]) -> float:
        """How far the simulation of a run is from it, as a share of its step; the worst of these runs."""
        return max(abs(predict(self, config).step_s / run.step_s - 1) for run, config in runs)


Run = tuple[Measured, RunConfig]


@dataclass(frozen=True, slots=True)
class Found:
    """Where a function has a value."""

    value: float
    is_at_bound: bool
    """Whether it was found at an end of the range alone, where the function may have another value."""


def found_at(rising: Callable[[float], float], value: float, most: float = 0.5) -> Found:
    """Where a function that rises from 0 to `most` has a value; one of both ends if it has it nowhere."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return Found((low + high) / 2, low == 0.0 or high == most)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a simulation says of a run."""

    step_s: float
    train_s: float


def predict(rates: Rates, config: RunConfig) -> Predicted:
    """Seconds per step of a run that was not measured: the mean of simulations, which differ in who asks when."""
    reports = []
    for seed in range(SEEDS):
        simulation = Simulation(_inputs(rates, config, seed))
        reports.append(report_of(simulation, simulation.run()))
    return Predicted(
        statistics.fmean(report.step_s for report in reports), statistics.fmean(report.training_s for report in reports)
    )


def _inputs(rates: Rates, config: RunConfig, seed: int) -> Inputs:
    groups, group_size = config.workers.groups_per_submission, config.sampling.group_size
    files = config.train.groups_per_step / groups
    return Inputs(
        name=config.name,
        terms=Terms.of(config, "trainer", frozenset({"validator"})),
        group_size=group_size,
        answer=Spread(rates.tokens),
        file_token_bytes=1.0,
        # An engine's pass takes as long as its answers together.
        machines=Machines(
            config.workers.count,
            config.workers.max_batch,
            0.0,
            rates.generate_s / rates.tokens,
            upload=Spread(rates.tokens / max(rates.upload_s, 1e-9)),
            load_s=rates.load_s,
            request_s=0.005,
        ),
        services=Services(
            verdict_s=rates.latency_s / 2,
            coordinator_rate=1e12,
            beside_s=rates.beside.fixed_s / files + rates.beside.answer_s * groups * group_size,
        ),
        training=Training(
            rates.training.fixed_s,
            rates.training.answer_s / rates.tokens,
            1e3,
            1e3,
            publish_s=rates.latency_s / 2,
        ),
        audit=config.audit,
        cores=rates.cores,
        seed=seed,
    )
