"""Real runs on this machine, and what a simulation says of them beforehand.

Rates come from three calibration runs, which are not among those that are predicted. In two of them trainer and worker
take turns (async level 0), with steps of two sizes: that gives what each role takes alone, per step and per answer. In
the third both are at work at once: how many cores they have between them is what makes its simulation as slow as it
was. What is predicted has other numbers of workers, groups and async levels.
"""

import math
import os
import statistics
from collections.abc import Sequence
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


def measure(base: Path, settings: dict[str, Any], steps: int, path: Path, progress: Progress) -> Measured:
    """Runs a config for so many steps after the first ones."""
    config = local_config(base, settings, steps)
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        entries = roles.steps(config.steps, progress.detail)
    return measured(entries[WARM:], submissions_of(run, config), WARM)


def local_config(base: Path, settings: dict[str, Any], steps: int) -> RunConfig:
    identity = {"name": "bench-simulate", "steps": steps + WARM, "model.source": str(base)}
    return changed(laptop_config(), {**SHARED, **identity, **settings})


def submissions_of(run: RunDir, config: RunConfig) -> list[Entry]:
    found = []
    for number in range(config.workers.count):
        entries = read_metrics(run.path / "metrics" / f"worker-{number}.jsonl")
        found += [entry for entry in entries if entry["event"] == "submission"]
    return found


def measured(steps: Sequence[Entry], submissions: Sequence[Entry], first: int) -> Measured:
    late = [entry for entry in submissions if entry["step"] >= first]
    step_s = (steps[-1]["time"] - steps[0]["time"]) / (len(steps) - 1)
    train_s = statistics.median(entry["train_s"] for entry in steps)
    samples = statistics.fmean(entry["samples"] for entry in steps)
    answers = sum(entry["samples"] for entry in late)
    generate_s = sum(entry["tokens"] / entry["tokens_per_s"] for entry in late) / answers
    tokens = sum(entry["tokens"] for entry in late) / answers
    return Measured(step_s, train_s, samples, generate_s, tokens, max(0.0, step_s - train_s - samples * generate_s))


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
    rest: PerStep
    generate_s: float
    """Per answer."""
    tokens: float
    cores: float

    @classmethod
    def of(cls, small: Measured, large: Measured) -> "Rates":
        """From two runs in which trainer and worker take turns."""
        training = PerStep.through((small.samples, small.train_s), (large.samples, large.train_s))
        rest = PerStep.through((small.samples, small.rest_s), (large.samples, large.rest_s))
        return cls(training, rest, large.generate_s, large.tokens, math.inf)

    def with_cores(self, at_once: Measured, config: RunConfig) -> "Rates":
        """The same with the cores that make the simulation of a run take as long as the run."""
        low, high = 1.0, float(os.cpu_count() or 1)
        for _ in range(12):
            middle = (low + high) / 2
            if predict(replace(self, cores=middle), config) > at_once.step_s:
                low = middle
            else:
                high = middle
        return replace(self, cores=high)


def predict(rates: Rates, config: RunConfig) -> float:
    """Seconds per step of a run that was not measured."""
    quarter_s = rates.rest.fixed_s / 4  # scoring, the verdict, publishing and loading
    inputs = Inputs(
        name=config.name,
        terms=Terms.of(config, "trainer", frozenset({"validator"})),
        group_size=config.sampling.group_size,
        answer=Spread(rates.tokens),
        file_token_bytes=1.0,
        # An engine's pass takes as long as its answers together; what takes longer with more answers in a file counts
        # as the time in which it is sent.
        machines=Machines(
            config.workers.count,
            config.workers.max_batch,
            0.0,
            rates.generate_s / rates.tokens,
            upload=Spread(rates.tokens / max(rates.rest.answer_s, 1e-9)),
            score_s=quarter_s,
            load_s=quarter_s,
            request_s=0.005,
        ),
        services=Services(verdict_s=quarter_s, coordinator_rate=1e12),
        training=Training(
            rates.training.fixed_s, rates.training.answer_s / rates.tokens, 1e3, 1e3, publish_s=quarter_s
        ),
        audit=config.audit,
        cores=rates.cores,
    )
    simulation = Simulation(inputs)
    return report_of(simulation, simulation.run()).step_s
