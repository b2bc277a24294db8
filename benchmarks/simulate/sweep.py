"""`python -m benchmarks.simulate.sweep OUT.jsonl [PICTURE.png] [WORKERS]`: what breaks first as a run grows.

Four sweeps about one run (INTELLECT-2's config, 32B, 1,000 workers of two H100, of which 5 % leave per hour, and 16
relays): the number of workers, churn, uplinks and the size of the model, each with full versions, deltas and adapters.
The run itself is a point of all four sweeps, and is simulated once per kind of version. Each simulation is one line of
OUT.jsonl; those that are there already are not run again, and those of more than WORKERS workers (default: all) are
left out: with less than 1,000, all sweeps but that of workers. The others are printed as the table of
`docs/simulation.md`.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common.configs import changed, checkout_config
from shoal.config import RunConfig
from shoal.plan.assumptions import assumptions
from shoal.simulate.command import simulated
from shoal.simulate.from_config import Chosen, inputs_of
from shoal.simulate.inputs import Inputs, Kind
from shoal.simulate.models import model_named
from shoal.simulate.plot import plot_sweep
from shoal.simulate.report import Report

KINDS: tuple[Kind, ...] = ("full", "delta", "lora")
NODES = (100, 1000, 10_000, 100_000)
# Devices of the trainer per billion parameters: 16 for 32B.
TRAINER_GPUS = 16 / 32.8
BASE = Chosen(
    nodes=1000,
    churn=5.0,
    uplink=100.0,
    downlink=500.0,
    relays=16,
    relay_link=10_000.0,
    trainer_gpus=16,
    model="32b",
    steps=8,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A point of a sweep: the sweep, the curve, and where on its axis it is."""

    sweep: str
    kind: Kind
    at: float
    chosen: Chosen

    @property
    def is_base(self) -> bool:
        """Whether it is the run that all sweeps have in common."""
        return self.chosen == replace(BASE, versions=self.kind)

    @property
    def key(self) -> str:
        """The simulation that it is; points of several sweeps may be one simulation."""
        return f"base {self.kind}" if self.is_base else f"{self.sweep} {self.kind} {self.at:g}"


def cases(most: int = NODES[-1]) -> list[Case]:
    """All points with at most so many workers."""
    return [case for case in all_cases() if (case.chosen.nodes or 0) <= most]


def simulations(points: Sequence[Case]) -> list[Case]:
    """One point for each simulation, those with the fewest workers first."""
    found: dict[str, Case] = {}
    for case in points:
        found.setdefault(case.key, case)
    return sorted(found.values(), key=lambda case: case.chosen.nodes or 0)


def all_cases() -> Iterator[Case]:
    for kind in KINDS:
        base = replace(BASE, versions=kind)
        for nodes in NODES:
            yield Case("nodes", kind, nodes, replace(base, nodes=nodes))
        for churn in (1.0, 5.0, 20.0, 50.0):
            yield Case("churn", kind, churn, replace(base, churn=churn))
        for uplink in (1.0, 10.0, 100.0):
            yield Case("uplink", kind, uplink, replace(base, uplink=uplink))
        for model in ("7b", "32b", "70b", "405b"):
            size = model_named(model).parameters / 1e9
            yield Case("model", kind, size, replace(base, model=model, trainer_gpus=round(TRAINER_GPUS * size)))


def sweep_config() -> RunConfig:
    return changed(checkout_config("intellect2.toml"), {"workers.max_batch": 48})


def inputs_of_case(case: Case) -> Inputs:
    config = sweep_config()
    return inputs_of(config, assumptions(config), case.chosen, model_named(case.chosen.model or "32b"))


def run_case(case: Case, console: Console) -> Report:
    return simulated(inputs_of_case(case), console)[1]


def read(path: Path) -> dict[str, Report]:
    """What was simulated before."""
    found: dict[str, Report] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        key = row.pop("case")
        values: dict[str, Any] = {name: inf if value is None else value for name, value in row.items()}
        found[key] = Report(**values)
    return found


def curves(found: dict[str, Report], sweep: str) -> dict[str, list[tuple[float, Report]]]:
    """A curve per kind of version."""
    of_sweep = [case for case in cases() if case.sweep == sweep and case.key in found]
    return {kind: [(case.at, found[case.key]) for case in of_sweep if case.kind == kind] for kind in KINDS}


def table_row(case: Case, report: Report) -> str:
    """One line of the table."""
    changed_to = {
        "nodes": "",
        "churn": f"{case.at:g} % leave per hour",
        "uplink": f"uplinks of {case.at:g} Mb/s",
        "model": f"{case.at:.0f}B",
    }[case.sweep]
    minutes = (_minutes(seconds) for seconds in (report.step_s, report.training_s, report.broadcast_half_s))
    shares = (f"{100 * share:.0f} %" for share in (report.relays_busy, report.tokens_lost))
    limits = "; ".join(said.partition(":")[0] for said in (report.limit, report.warning) if said)
    cells = (f"{case.chosen.nodes:,}", case.kind, changed_to, *minutes, *shares, limits)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _minutes(seconds: float) -> str:
    if seconds == inf:
        return "never"
    return f"{seconds / 60:,.0f}" if seconds >= 600 else f"{seconds / 60:.1f}"


def main() -> None:
    out, most = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else NODES[-1]
    console, found = Console(stderr=True), read(out)
    todo = [case for case in simulations(cases(most)) if case.key not in found]
    for number, case in enumerate(todo, 1):
        console.print(f"{number} of {len(todo)}: {case.key}", highlight=False)
        report = run_case(case, console)
        found[case.key] = report
        with out.open("a") as file:
            file.write(json.dumps({"case": case.key, **json.loads(report.to_json())}) + "\n")
    for case in cases(most):
        if case.sweep == "nodes" or not case.is_base:
            sys.stdout.write(f"{table_row(case, found[case.key])}\n")
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
