"""One run of a study: in this process, or as the processes of a swarm."""

import hashlib
import io
import shutil
from collections.abc import Mapping
from contextlib import redirect_stdout
from statistics import fmean
from typing import Any

from rich.console import Console

from shoal.config import RunConfig
from shoal.crypto.signed import canonical
from shoal.errors import ShoalError
from shoal.models.base import ensure_base_model
from shoal.roles.supervisor import run_swarm
from shoal.rundir import claimed, prepare_run
from shoal.studies.configs import changed
from shoal.studies.study import Job, Outcome
from shoal.studies.training_loop import Loop
from shoal.telemetry.metrics import Entry, read_metrics, read_steps
from shoal.watch.contributions import read_contributions

SMOKE = {"model.tiny.warm_steps": 10, "model.tiny.hidden": 32, "model.tiny.layers": 1}


def config_of(job: Job, config: RunConfig, common: Mapping[str, Any]) -> RunConfig:
    """The config of a job: a study's own, its setting's changes, its seed, and the base model of all of its runs."""
    if job.size.smoke:
        # Partial credit: a model that was hardly trained has something to learn from.
        tasks = [task.model_dump(mode="json", exclude_none=True) | {"binary": False} for task in config.tasks]
        config = changed(config, {**SMOKE, "tasks": tasks})
    base = ensure_base_model(config, Console(file=io.StringIO()))
    level = job.setting.changes.get("async_level", max(job.setting.lag, 0 if not job.setting.swarm else 2))
    sizes = {
        "seed": job.seed,
        "steps": job.size.steps * job.setting.times,
        "async_level": level,
        "keep.versions": max(config.keep.versions, level + 2),
        "train.groups_per_step": job.size.groups,
        "train.cooldown_steps": 0,
        "model.source": str(base),
        "swarm.pages": "off",
        "eval.tasks": job.size.heldout,
        "eval.every": job.size.every * job.setting.times,
    }
    if job.size.smoke:
        sizes["train.online_filter"] = False  # steps that teach nothing go by
    return changed(config, {**sizes, **common, **job.setting.changes})


def fingerprint(*configs: RunConfig | None) -> str:
    """Equal for runs that differ in nothing but their seed."""
    trees = [one.model_dump(mode="json", exclude={"seed"}) for one in configs if one is not None]
    return hashlib.sha256(canonical(trees).encode()).hexdigest()[:12]


def train_here(job: Job, config: RunConfig, measured_on: RunConfig | None = None) -> Outcome:
    """Trains in this process; rollouts are as old as the setting says."""
    base = ensure_base_model(config, Console(file=io.StringIO()))
    loop = Loop(config, base, job.setting.lag, job.said, config.eval.tasks, config.eval.every, measured_on)
    return {**loop.run().to_json(), "config": fingerprint(config, measured_on)}


def train_in_swarm(job: Job, config: RunConfig) -> Outcome:
    """Runs what `shoal run` runs, with all its processes, and reads what they measured."""
    path = job.scratch / "run"
    job.said("starting the processes of the run")
    with (job.scratch / "output.txt").open("w") as file:
        console = Console(file=file)
        with redirect_stdout(file), claimed(path, f"study: another run is at work in {path}"):
            run_swarm(prepare_run(config, path, console), console)
    found = read_swarm(
        read_steps(path / "metrics" / "trainer.jsonl", "step"),
        read_steps(path / "metrics" / "evaluator.jsonl", "eval", key="version"),
        [
            entry
            for file in (path / "metrics").glob("worker-*.jsonl")
            for entry in read_metrics(file)
            if entry["event"] == "submission"
        ],
        config.steps,
    )
    workers = [one for one in read_contributions(path) if one.role == "worker"]
    found |= {
        "config": fingerprint(config),
        "cheaters_banned": sum(one.state == "banned" for one in workers if one.name.startswith("cheater-")),
        "cheaters_accepted": sum(one.accepted for one in workers if one.name.startswith("cheater-")),
        "honest_rejected": sum(one.rejected for one in workers if not one.name.startswith("cheater-")),
    }
    shutil.rmtree(path, ignore_errors=True)
    return found


def read_swarm(steps: list[Entry], evals: list[Entry], submissions: list[Entry], last: int) -> Outcome:
    """What the metrics of trainer, evaluator and honest workers say of a run of so many versions.

    The clock runs from the moment at which a worker generates and the trainer waits to the end of the last step:
    filling the pipeline counts, importing torch does not.
    """
    reached = [entries[-1][key] if entries else None for entries, key in ((steps, "step"), (evals, "version"))]
    if reached != [last - 1, last]:
        raise ShoalError(
            f"study: a run of {last} steps must reach step {last - 1} and measure version {last}, but its last step is "
            f"{reached[0]} and its last measured version {reached[1]}"
        )
    first = min(one["time"] - one["tokens"] / one["tokens_per_s"] for one in submissions)
    began = max(first, steps[0]["time"] - steps[0]["step_s"])
    return {
        "wall_s": steps[-1]["time"] - began,
        "curve": [{"step": one["step"], "reward": one["reward"]} for one in steps],
        "measured": [{"version": one["version"], "pass_at_1": one["pass_at_1"]} for one in evals],
        "final": evals[-1]["pass_at_1"],
        "staleness_mean": fmean(one["staleness_mean"] for one in steps),
        "staleness_max": max(one["staleness_max"] for one in steps),
        "samples": sum(one["samples"] for one in steps),
    }
