"""`python -m benchmarks filter`: the same training steps on tasks of mixed difficulty, with a filter and without.

Half of the tasks are words that the base model never spells, a quarter words that it nearly always does, and a quarter
words in between. Three sides start from the same model and make the same number of steps of the same number of groups:
plain GRPO, which takes every group as it comes; the same on what the offline filter left of 2,000 tasks; and the same
with the online filter, on all tasks. So each filter is compared with none at all: with the online filter on, unfiltered
tasks would be filtered too. The online filter samples more for the same steps, which is counted.

The reward is the share of right answers to held-out words of the whole mixture, the same for all sides and versions.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from benchmarks.common.roles import Roles
from shoal.config import RunConfig
from shoal.evals.answers import Drawing, answer_tasks
from shoal.evals.filter import filter_source
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.rundir import RunDir, prepare_run
from shoal.studies.filters import KEEP, MIXED, SAMPLES
from shoal.studies.intervals import mean_of
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.sources.filtered import Header

PLAIN, OFFLINE, ONLINE = "plain", "offline filter", "online filter"
SIDES = (PLAIN, OFFLINE, ONLINE)


SETTINGS: dict[str, Any] = {
    "name": "bench-filter",
    "tasks": MIXED,
    "sampling.group_size": 8,
    "train.groups_per_step": 16,
    "train.lr": 1e-4,
    "train.cooldown_steps": 0,
    "workers.count": 1,
    "workers.batches": [],
    "audit.rate": 0.0,
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything: steps of a run and between measurements, seeds, tasks filtered and held out."""

    steps: int
    every: int
    seeds: int
    tasks: int
    heldout: int


FULL = Size(steps=60, every=20, seeds=3, tasks=2000, heldout=1024)
QUICK = Size(steps=4, every=2, seeds=2, tasks=120, heldout=32)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run: what its versions earn on the mixture, by their number, and what it sampled on the way."""

    rewards: Mapping[int, float]
    sampled: int

    @property
    def last(self) -> float:
        return self.rewards[max(self.rewards)]


def bench_filter(quick: bool, progress: Progress) -> BenchResult:
    """Held-out reward after the same steps with each filter and with none, in turns."""
    size = QUICK if quick else FULL
    base = base_model(laptop_config(), progress)
    outcomes: dict[str, list[Outcome]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-filter-") as scratch:
        kept = Path(scratch) / "kept.jsonl"
        common = {**SETTINGS, "steps": size.steps, "keep.versions": size.steps, "model.source": str(base)}
        config = changed(laptop_config(), common)
        progress.stage(f"filtering {size.tasks} tasks")
        with progress.aside() as console:
            header = Header(config.tasks, str(base), SAMPLES, KEEP, 1.0, 0)
            filter_source(header, _drawing(config, SAMPLES), size.tasks, kept, console)
        for seed in range(1, size.seeds + 1):
            for side in SIDES:
                progress.stage(f"seed {seed} of {size.seeds}, {side}")
                tasks = [{"source": f"filtered/{kept}"}] if side == OFFLINE else MIXED
                changes = {"seed": seed, "tasks": tasks, "train.online_filter": side == ONLINE}
                path = Path(scratch) / f"{side.replace(' ', '-')}-{seed}"
                outcomes[side].append(_run(changed(config, changes), config, path, size, progress))
    return conclude(outcomes[PLAIN], outcomes[OFFLINE], outcomes[ONLINE])


def _drawing(config: RunConfig, samples: int) -> Drawing:
    sampling = config.sampling
    return Drawing(samples, sampling.temperature, sampling.max_new_tokens, sampling.max_prompt_tokens)


def _run(config: RunConfig, measured: RunConfig, path: Path, size: Size, progress: Progress) -> Outcome:
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        entries = roles.steps(config.steps, progress.detail)
    progress.detail("measuring")
    numbers = [*range(0, size.steps, size.every), size.steps]
    return Outcome(_rewards(run, measured, numbers, size.heldout), sum(entry["samples_seen"] for entry in entries))


def _rewards(run: RunDir, measured: RunConfig, numbers: Sequence[int], heldout: int) -> dict[int, float]:
    """What some versions earn on held-out tasks, with the same noise for all."""
    channel = run.channel()
    reader = VersionReader(channel, measured.model.dtype)
    policy = load(run.base_model)
    source = build_source(measured.tasks)
    tasks = [source.task("heldout", index) for index in range(heldout)]
    rewards = {}
    with Scorer(measured.tasks) as judge:
        for number in numbers:
            version = channel.version(number)
            assert version is not None, f"version {number} is not there"
            policy.set_weights(reader.read(channel.fetch(version)), f"version {number}")
            answered = answer_tasks(policy, tasks, judge, "heldout", _drawing(measured, 4))
            rewards[number] = statistics.fmean(one.mean_reward for one in answered)
    return rewards


def conclude(plain: Sequence[Outcome], offline: Sequence[Outcome], online: Sequence[Outcome]) -> BenchResult:
    """Means over seeds with intervals, and the gaps seed by seed. Without any filter the two comparisons are one."""
    sides = {"unfiltered": plain, "filtered": offline, "online_off": plain, "online_on": online}
    values: dict[str, float | int] = {"seeds": len(plain), "reward_base": plain[0].rewards[0]}
    for name, outcomes in sides.items():
        values |= _with_interval(f"reward_{name}", [outcome.last for outcome in outcomes])
    for name, outcomes in (("filtered", offline), ("online", online)):
        gaps = [one.last - other.last for one, other in zip(outcomes, plain, strict=True)]
        values |= _with_interval(f"gap_{name}", gaps)
    for name, outcomes in (("unfiltered", plain), ("filtered", offline), ("online_on", online)):
        for number in plain[0].rewards:
            values[f"reward_{name}_at_{number}"] = statistics.fmean(outcome.rewards[number] for outcome in outcomes)
    sampled = [sum(outcome.sampled for outcome in outcomes) for outcomes in (plain, offline, online)]
    ratios = {
        "samples_filtered_vs_unfiltered": sampled[1] / sampled[0],
        "samples_online_on_vs_off": sampled[2] / sampled[0],
    }
    return BenchResult("filter", ratios, values, {"gap_filtered": (">=", 0.0), "gap_online": (">=", 0.0)})


def _with_interval(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, and half the width of its 95 % interval."""
    found = mean_of(values)
    return {name: found.mean, f"{name}_ci": found.high - found.mean}
