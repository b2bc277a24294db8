"""`python -m benchmarks simulate`: is the simulation right, and is it fast.

Against the paper: its inputs must give its five times. Against real runs: three configs run here, each predicted from
rates that were measured in other runs. And 100,000 nodes for 100 steps, on this machine.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.simulate.local import (
    AT_ONCE,
    CALIBRATED,
    PREDICTED,
    Measured,
    Rates,
    local_config,
    measure,
    predict,
)
from benchmarks.simulate.sweep import BASE, sweep_config
from shoal.plan.assumptions import assumptions
from shoal.simulate.from_config import inputs_of
from shoal.simulate.models import model_named
from shoal.simulate.paper import errors, paper_inputs
from shoal.simulate.report import Report, report_of
from shoal.simulate.simulation import Simulation

BARS: dict[str, tuple[Op, float]] = {
    "broadcast_error": ("<=", 0.1),
    "first_file_error": ("<=", 0.1),
    "full_batch_error": ("<=", 0.1),
    "long_full_batch_error": ("<=", 0.1),
    "training_error": ("<=", 0.1),
    "local_error": ("<=", 0.15),
    "nodes": (">=", 100_000),
    "steps": (">=", 100),
    "seconds": ("<=", 600.0),
}


def bench_simulate(quick: bool, progress: Progress) -> BenchResult:
    """The paper's times, three local runs, and a large swarm."""
    values: dict[str, Figure] = {}
    progress.stage("the paper's run")
    usual, long = (_run(Simulation(paper_inputs(long=long))) for long in (False, True))
    values |= {
        "broadcast_min": usual.broadcast_s / 60,
        "first_file_min": usual.first_file_s / 60,
        "full_batch_min": usual.full_batch_s / 60,
        "long_full_batch_min": long.full_batch_s / 60,
        "training_min": usual.training_s / 60,
    }
    values |= errors(usual, long)
    values |= _local(quick, progress)
    values |= _large(quick, progress)
    return BenchResult("simulate", {}, values, BARS)


def _run(simulation: Simulation) -> Report:
    return report_of(simulation, simulation.run())


def _local(quick: bool, progress: Progress) -> dict[str, Figure]:
    """Predicted and measured seconds per step of each local run, and the worst relative error."""
    steps = 6 if quick else 24
    base = base_model(laptop_config(), progress)
    values: dict[str, Figure] = {}
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="shoal-bench-simulate-") as scratch:

        def run(name: str, settings: dict[str, Any]) -> Measured:
            progress.stage(f"local run: {name}")
            return measure(base, settings, steps, Path(scratch) / name, progress)

        in_turn = [(run(name, one), local_config(base, one, steps)) for name, one in CALIBRATED.items()]
        rates = Rates.of(*(measured for measured, _ in in_turn))
        at_once = run("at-once", AT_ONCE), local_config(base, AT_ONCE, steps)
        rates = rates.fitted(in_turn, at_once)
        values["local_cores"] = rates.cores
        values["local_fit_error"] = rates.fit_error([*in_turn, at_once])
        values["local_fit_at_bound"] = ", ".join(sorted(rates.at_bound)) or "nothing"
        for name, settings in PREDICTED.items():
            predicted = predict(rates, local_config(base, settings, steps)).step_s
            found = run(name, settings).step_s
            values[f"local_{name}_predicted_s"], values[f"local_{name}_measured_s"] = predicted, found
            worst = max(worst, abs(predicted / found - 1))
    return {**values, "local_error": worst}


def _large(quick: bool, progress: Progress) -> dict[str, Figure]:
    """A swarm of 100,000 nodes: INTELLECT-2's config with deltas, 64 relays, 1 % churn per hour."""
    nodes, steps = (2_000, 5) if quick else (100_000, 100)
    progress.stage(f"{nodes:,} nodes for {steps} steps")
    config = sweep_config()
    chosen = replace(BASE, nodes=nodes, steps=steps, relays=64, versions="delta", churn=1.0)
    inputs = inputs_of(config, assumptions(config), chosen, model_named("32b"))
    told = f"of {steps} steps"
    report = _run(Simulation(inputs, lambda step, _now: progress.detail(f"{step} {told}")))
    return {
        "nodes": report.nodes,
        "steps": report.steps,
        "seconds": report.wall_s,
        "events": report.events,
        "large_step_min": report.step_s / 60,
        "large_limit": report.limit,
        "large_warning": report.warning,
    }
