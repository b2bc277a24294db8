"""Real runs on this machine, and what a simulation says of them beforehand.

Rates come from two calibration runs, which are not among those that are predicted: one takes turns (async level 0), so
that each role is measured alone, and one has two workers beside the trainer, so that it is seen how many cores they
have between them. What is predicted has other numbers of workers, groups and async levels.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
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
class Rates:
    """What predictions are made of."""

    train_step_s: float
    train_answer_s: float
    answer_s: float
    """Of an engine, per answer."""
    tokens: float
    rest_s: float
    cores: float

    @classmethod
    def of(cls, in_turn: Measured, small: Measured, cores: float) -> "Rates":
        """A training step has a fixed part and one per answer: two runs of other sizes give both."""
        more = in_turn.samples - small.samples
        per_answer = max(0.0, (in_turn.train_s - small.train_s) / more) if more else in_turn.train_s / in_turn.samples
        fixed = max(0.0, in_turn.train_s - per_answer * in_turn.samples)
        return cls(fixed, per_answer, in_turn.generate_s, in_turn.tokens, in_turn.rest_s, cores)


def predict(rates: Rates, config: RunConfig) -> float:
    """Seconds per step of a run that was not measured."""
    terms = Terms.of(config, "trainer", frozenset({"validator"}))
    places = config.workers.max_batch
    # All answers take about as long: an engine gives each of its places a token in the time of a pass.
    answer_s = rates.answer_s / rates.tokens
    inputs = Inputs(
        name=config.name,
        terms=terms,
        group_size=config.sampling.group_size,
        answer=Spread(rates.tokens, 0.0),
        file_token_bytes=1.0,
        machines=Machines(
            config.workers.count,
            places,
            0.0,
            answer_s,
            score_s=rates.rest_s / 4,
            load_s=rates.rest_s / 4,
            request_s=0.005,
        ),
        services=Services(verdict_s=rates.rest_s / 4),
        training=Training(
            rates.train_step_s, rates.train_answer_s / rates.tokens, 1e3, 1e3, publish_s=rates.rest_s / 4
        ),
        audit=config.audit,
        cores=rates.cores,
    )
    simulation = Simulation(inputs)
    return report_of(simulation, simulation.run()).step_s
