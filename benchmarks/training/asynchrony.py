"""`python -m benchmarks async`: what asynchrony saves and what it costs: the same run at async levels 0 and 2.

At level 0 trainer and worker take turns; at level 2 the worker is up to two versions ahead and both work at once. The
run is sized so that generating and training a step cost about the same. Each seed runs at both levels, one after the
other, with the same base model, processes, threads and number of steps and groups.

The final reward is the mean of a run's last fifth. "Within the noise" means: the means of the two levels differ by no
more than they would by chance in 95 of 100 such comparisons if the level made no difference (Student's t, pooled spread
of the seeds). That width is `reward_noise`.
"""

import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from benchmarks.common.roles import Roles
from shoal.config import RunConfig
from shoal.rundir import RunDir, prepare_run
from shoal.studies.intervals import CONFIDENCE, student_t
from shoal.studies.wall_time import SWARM
from shoal.telemetry.metrics import Entry, read_metrics

FINAL_SHARE = 0.2
SETTINGS: dict[str, Any] = {"name": "bench-async", **SWARM}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run; seconds of work are those of a step."""

    wall_s: float
    reward: float
    samples: int
    generation_s: float
    training_s: float
    staleness: float


def bench_async(quick: bool, progress: Progress) -> BenchResult:
    """Wall time and final reward at both levels, each role on one thread; and level 0 once more on all cores.

    The last is what a run that takes turns would do with a machine to itself: each role has every core in its turn.
    """
    steps, seeds = (6, 2) if quick else (80, 3)
    cores = os.cpu_count() or 1
    base = base_model(laptop_config(), progress)
    outcomes: dict[int, list[Outcome]] = {0: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-async-") as scratch:

        def run(seed: int, level: int, threads: int) -> Outcome:
            progress.stage(f"seed {seed} of {seeds}, async level {level}, threads of a role: {threads}")
            identity = {"seed": seed, "steps": steps, "async_level": level, "model.source": str(base)}
            config = changed(
                laptop_config(), {**SETTINGS, **identity, "train.threads": threads, "workers.threads": threads}
            )
            return _run(config, Path(scratch) / f"seed-{seed}-level-{level}-threads-{threads}", progress)

        for seed in range(1, seeds + 1):
            for level, runs in outcomes.items():
                runs.append(run(seed, level, 1))
        all_cores = run(1, 0, cores)
    return conclude(outcomes[0], outcomes[2], all_cores)


def _run(config: RunConfig, path: Path, progress: Progress) -> Outcome:
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        entries = roles.steps(config.steps, progress.detail)
    return outcome(entries, _submissions(run))


def _submissions(run: RunDir) -> list[Entry]:
    return [entry for entry in read_metrics(run.path / "metrics" / "worker-0.jsonl") if entry["event"] == "submission"]


def outcome(steps: Sequence[Entry], submissions: Sequence[Entry]) -> Outcome:
    """What the metrics of trainer and worker say of a run.

    The clock runs from the moment at which both are up, the worker generating and the trainer waiting, to the end
    of the last step: filling the pipeline counts, importing torch does not.
    """
    spent = [entry["tokens"] / entry["tokens_per_s"] for entry in submissions]
    began = max(submissions[0]["time"] - spent[0], steps[0]["time"] - steps[0]["step_s"])
    final = steps[-max(1, round(FINAL_SHARE * len(steps))) :]
    return Outcome(
        wall_s=steps[-1]["time"] - began,
        reward=statistics.fmean(entry["reward"] for entry in final),
        samples=sum(entry["samples"] for entry in steps),
        generation_s=math.fsum(spent) / len(steps),
        training_s=statistics.fmean(entry["train_s"] for entry in steps),
        staleness=statistics.fmean(entry["staleness_mean"] for entry in steps),
    )


def conclude(level0: Sequence[Outcome], level2: Sequence[Outcome], all_cores: Outcome) -> BenchResult:
    """The figures of the benchmark; seed i of one level stands beside seed i of the other."""
    seeds = len(level0)
    rewards0, rewards2 = ([o.reward for o in runs] for runs in (level0, level2))
    spread = math.sqrt((statistics.variance(rewards0) + statistics.variance(rewards2)) / 2)
    noise = student_t(2 * seeds - 2, CONFIDENCE) * spread * math.sqrt(2 / seeds)
    difference = abs(statistics.fmean(rewards2) - statistics.fmean(rewards0))
    walls = [two.wall_s / none.wall_s for none, two in zip(level0, level2, strict=True)]
    return BenchResult(
        "async",
        {"wall_level2_vs_level0": statistics.median(walls)},
        {
            "wall_level0_s": statistics.median(o.wall_s for o in level0),
            "wall_level2_s": statistics.median(o.wall_s for o in level2),
            "wall_level0_all_cores_s": all_cores.wall_s,
            "generation_s": statistics.median(o.generation_s for o in level0),
            "training_s": statistics.median(o.training_s for o in level0),
            "reward_level0": statistics.fmean(rewards0),
            "reward_level2": statistics.fmean(rewards2),
            "reward_difference": difference,
            "reward_noise": noise,
            "reward_std_of_seeds": spread,
            "samples_level0": sum(o.samples for o in level0),
            "samples_level2": sum(o.samples for o in level2),
            "staleness_level2": statistics.fmean(o.staleness for o in level2),
            "seeds": seeds,
        },
        {"wall_level2_vs_level0": ("<=", 0.7), "reward_difference": ("<=", noise)},
    )
