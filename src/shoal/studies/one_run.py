"""One run of a study: in this process, or as the processes of a swarm."""

import io
import shutil
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from rich.console import Console

from shoal.config import RunConfig
from shoal.models.base import ensure_base_model
from shoal.roles.supervisor import run_swarm
from shoal.rundir import claimed, prepare_run
from shoal.studies.configs import changed
from shoal.studies.study import Job, Outcome
from shoal.studies.training_loop import Loop
from shoal.telemetry.metrics import Entry, number, read_metrics, read_steps

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
        "steps": job.size.steps,
        "async_level": level,
        "keep.versions": max(config.keep.versions, level + 2),
        "train.groups_per_step": job.size.groups,
        "train.cooldown_steps": 0,
        "model.source": str(base),
        "swarm.pages": "off",
        "eval.tasks": job.size.heldout,
        "eval.every": job.size.every,
    }
    if job.size.smoke:
        sizes["train.online_filter"] = False  # steps that teach nothing go by
    return changed(config, {**sizes, **common, **job.setting.changes})


def train_here(job: Job, config: RunConfig, measured_on: RunConfig | None = None) -> Outcome:
    """Trains in this process; rollouts are as old as the setting says."""
    base = ensure_base_model(config, Console(file=io.StringIO()))
    loop = Loop(config, base, job.setting.lag, job.said, job.size.heldout, job.size.every, measured_on)
    return loop.run().to_json()


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
        [entry for file in (path / "metrics").glob("validator*.jsonl") for entry in read_metrics(file)],
    )
    shutil.rmtree(path, ignore_errors=True)
    return found


def read_swarm(steps: list[Entry], evals: list[Entry], verdicts: list[Entry]) -> Outcome:
    """What the metrics of trainer, evaluator and validator say of a run.

    The clock runs from the trainer's first wait for rollouts to the end of its last step: starting processes is not
    training.
    """
    return {
        "wall_s": steps[-1]["time"] - steps[0]["time"] + steps[0]["step_s"],
        "curve": [{"step": one["step"], "reward": one["reward"]} for one in steps],
        "measured": [{"version": one["version"], "pass_at_1": one["pass_at_1"]} for one in evals],
        "final": evals[-1]["pass_at_1"],
        "staleness_mean": sum(number(one, "staleness_mean") or 0.0 for one in steps) / len(steps),
        "staleness_max": max(number(one, "staleness_max") or 0.0 for one in steps),
        "samples": sum(one["samples"] for one in steps),
        "banned": sum(one["event"] == "banned" for one in verdicts),
        "rejected": sum(one["event"] == "verdict" and one.get("accept") is False for one in verdicts),
    }
