"""Learning rates of the benchmark `fbam`, chosen on another seed than those that it shows.

Usage: `python -m benchmarks.fbam.rates DIR`. It trains models for a share of their steps with each rate, and prints the
loss of the last steps; the lowest gives the rate in `benchmarks/fbam/depth.py`. Rates are tried once per family of
tasks: `frjt` has those of `frjt-live`; both contests in S5 have those of the longer one, all depths that of 2 layers.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.fbam.depth import DEEP, LIVE, LSTM, TRANSFORMER, Contest, Model
from benchmarks.fbam.jobs import Job, run_jobs
from shoal.fbam.model_config import IntegratorKind

SEED = 1000
SHARE = 3  # of the steps of a contest, and of its curriculum: one in so many
RATES: Mapping[IntegratorKind, tuple[float, ...]] = {
    "lstm": (2e-3, 5e-3),
    "transformer": (3e-4, 1e-3, 3e-3),
    "scan": (3e-4, 1e-3, 3e-3),
}
CONTESTS = ((LIVE, LIVE.models), (DEEP, (LSTM, TRANSFORMER)))


def rate_job(contest: Contest, model: Model, lr: float) -> Job:
    short = replace(contest, steps=contest.steps // SHARE, curriculum_steps=contest.curriculum_steps // SHARE)
    job = short.job(model, SEED, quick=False)
    settings = job.settings.model_copy(update={"lr": lr})
    return replace(job, name=f"rate_{lr:g}_{job.name}", settings=settings, questions={"lengths": (), "sequences": 0})


def rate_jobs() -> list[Job]:
    return [
        rate_job(contest, model, lr) for contest, models in CONTESTS for model in models for lr in RATES[model.kind]
    ]


def main(directory: Path) -> None:
    with Progress(Console(stderr=True)) as progress:
        found = run_jobs(rate_jobs(), Parts(directory), progress)
    table = Table("task", "lengths", "model", "rate", "loss of the last steps")
    for contest, models in CONTESTS:
        for model in models:
            losses = {lr: found[rate_job(contest, model, lr).name]["loss"] for lr in RATES[model.kind]}
            for lr, loss in losses.items():
                shown = f"{loss:.4f}{' *' if loss == min(losses.values()) else ''}"
                name = f"{model.kind}, {model.layers} layers"
                table.add_row(contest.task, f"1..{contest.max_length}", name, f"{lr:g}", shown)
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
