"""`python -m benchmarks.simulate.sweep OUT.jsonl [PICTURE.png]`: what breaks first as a run grows.

Four sweeps about one run (INTELLECT-2's config, 32B, 1,000 workers of two H100, of which 5 % leave per hour, and 16
relays): the number of workers, churn, uplinks and the size of the model, each with full versions, deltas and adapters.
Each simulation is one line of OUT.jsonl; those that are there already are not run again.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common.configs import changed, checkout_config
from shoal.config import RunConfig
from shoal.plan.assumptions import assumptions
from shoal.simulate.command import simulated
from shoal.simulate.from_config import Chosen, inputs_of
from shoal.simulate.inputs import Kind
from shoal.simulate.models import model_named
from shoal.simulate.plot import plot_sweep
from shoal.simulate.report import Report

KINDS: tuple[Kind, ...] = ("full", "delta", "lora")
# Devices of the trainer per billion parameters: 16 for 32B.
TRAINER_GPUS = 16 / 32.8
BASE = Chosen(nodes=1000, churn=5.0, uplink=100.0, downlink=500.0, relays=16, relay_link=10_000.0, model="32b", steps=8)


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation: the sweep that it belongs to, the curve, and where on its axis it is."""

    sweep: str
    kind: Kind
    at: float
    chosen: Chosen

    @property
    def key(self) -> str:
        return f"{self.sweep} {self.kind} {self.at:g}"


def cases() -> Iterator[Case]:
    for kind in KINDS:
        base = replace(BASE, versions=kind)
        for nodes in (100, 1000, 10_000, 100_000):
            yield Case("nodes", kind, nodes, replace(base, nodes=nodes))
        for churn in (1.0, 5.0, 20.0, 50.0):
            yield Case("churn", kind, churn, replace(base, churn=churn))
        for uplink in (1.0, 10.0, 100.0):
            yield Case("uplink", kind, uplink, replace(base, uplink=uplink))
        for model in ("7b", "32b", "70b", "405b"):
            size = model_named(model).parameters / 1e9
            yield Case("model", kind, size, replace(base, model=model, trainer_gpus=max(1, round(TRAINER_GPUS * size))))


def sweep_config() -> RunConfig:
    return changed(checkout_config("intellect2.toml"), {"workers.max_batch": 48})


def run_case(config: RunConfig, case: Case, console: Console) -> Report:
    model = model_named(case.chosen.model or "32b")
    return simulated(inputs_of(config, assumptions(config), case.chosen, model), console)[1]


def read(path: Path) -> dict[str, Report]:
    """What was simulated before."""
    found: dict[str, Report] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        key = row.pop("case")
        values: dict[str, Any] = {name: float("nan") if value is None else value for name, value in row.items()}
        found[key] = Report(**values)
    return found


def curves(found: dict[str, Report], sweep: str) -> dict[str, list[tuple[float, Report]]]:
    """A curve per kind of version."""
    of_sweep = [case for case in cases() if case.sweep == sweep]
    return {kind: [(case.at, found[case.key]) for case in of_sweep if case.kind == kind] for kind in KINDS}


def main() -> None:
    out = Path(sys.argv[1])
    console, config, found = Console(stderr=True), sweep_config(), read(out)
    todo = sorted((case for case in cases() if case.key not in found), key=lambda case: case.chosen.nodes or 0)
    for number, case in enumerate(todo, 1):
        console.print(f"{number} of {len(todo)}: {case.key}", highlight=False)
        report = run_case(config, case, console)
        found[case.key] = report
        with out.open("a") as file:
            file.write(json.dumps({"case": case.key, **json.loads(report.to_json())}) + "\n")
    titles = {
        "nodes": "Workers",
        "churn": "Leave per hour, %",
        "uplink": "Uplink, Mb/s",
        "model": "Billions of parameters",
    }
    if len(sys.argv) > 2:
        plot_sweep({title: curves(found, name) for name, title in titles.items()}, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
