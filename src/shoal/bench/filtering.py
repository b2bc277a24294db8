"""`shoal bench filter`: the same number of training steps on tasks of mixed difficulty, filtered and not.

Half of the tasks are words that the base model never spells, a quarter words that it always does, and a quarter words
in between. Both sides are measured on the same held-out words of that mixture. What a run samples to fill its steps is
counted as well: groups without signal are refilled on both sides, and unfiltered tasks make many of them.
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.bench.laptop import base_model, changed, laptop_config
from shoal.bench.progress import Progress
from shoal.bench.result import BenchResult
from shoal.bench.roles import Roles
from shoal.config import RunConfig
from shoal.evals import evaluate
from shoal.measure.answers import Drawing
from shoal.measure.filter import filter_source
from shoal.models.load import load, read_weights
from shoal.rundir import prepare_run
from shoal.tasks.build import build_source
from shoal.tasks.filtered import Header
from shoal.tasks.scorer import Scorer

# Student's t at 97.5 % for the mean of n seeds: n - 1 degrees of freedom.
T_975 = {2: 12.706, 3: 4.303}
KEEP = (0.125, 0.5)
SAMPLES = 8


def _words(name: str, weight: float, shortest: int, longest: int) -> dict[str, Any]:
    options = {"min_word_len": shortest, "max_word_len": longest}
    return {"source": "reasoning-gym/spell_backward", "name": name, "weight": weight, "options": options}


MIXED = [_words("easy", 1, 3, 3), _words("between", 1, 5, 8), _words("hard", 2, 9, 10)]
SETTINGS: dict[str, Any] = {
    "name": "bench-filter",
    "sampling.max_new_tokens": 16,
    "sampling.group_size": 8,
    "train.groups_per_step": 32,
    "train.lr": 1e-4,
    "train.cooldown_steps": 0,
    "audit.rate": 0.0,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run: what its last version solves of the mixture, and what it sampled on the way."""

    reward: float
    sampled: int


def bench_filter(quick: bool, progress: Progress) -> BenchResult:
    """Held-out pass@1 after the same steps, with and without the offline filter, in turns."""
    steps, seeds, tasks, heldout = (3, 2, 120, 64) if quick else (60, 3, 2000, 512)
    base = base_model(laptop_config(), progress)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-filter-") as scratch:
        kept = Path(scratch) / "kept.jsonl"
        config = changed(laptop_config(), {**SETTINGS, "tasks": MIXED, "steps": steps, "model.source": str(base)})
        progress.stage(f"filtering {tasks} tasks")
        sampling = config.sampling
        drawing = Drawing(SAMPLES, 1.0, sampling.max_new_tokens, sampling.max_prompt_tokens)
        with progress.aside() as console:
            filter_source(Header(config.tasks, str(base), SAMPLES, KEEP, 1.0, 0), drawing, tasks, kept, console)
        found: dict[str, list[Outcome]] = {"unfiltered": [], "filtered": []}
        for seed in range(1, seeds + 1):
            for side, outcomes in found.items():
                progress.stage(f"seed {seed} of {seeds}, {side}")
                lines = MIXED if side == "unfiltered" else [{"source": f"filtered/{kept}"}]
                run = changed(config, {"seed": seed, "tasks": lines})
                outcomes.append(_run(run, config, Path(scratch) / f"{side}-{seed}", heldout, progress))
    return conclude(found["filtered"], found["unfiltered"])


def _run(config: RunConfig, measured: RunConfig, path: Path, heldout: int, progress: Progress) -> Outcome:
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        entries = roles.steps(config.steps, progress.detail)
    channel = run.channel()
    last = channel.latest()
    assert last is not None
    policy = load(run.base_model)
    policy.set_weights(read_weights(channel.fetch(last), config.model.dtype), f"version {last.number}")
    with Scorer(measured.tasks) as judge:
        result = evaluate(policy, build_source(measured.tasks), judge, measured, heldout)
    return Outcome(result.pass_at_1, sum(entry["samples_seen"] for entry in entries))


def conclude(filtered: Sequence[Outcome], unfiltered: Sequence[Outcome]) -> BenchResult:
    """Means with intervals, and the gap seed by seed."""
    gaps = [a.reward - b.reward for a, b in zip(filtered, unfiltered, strict=True)]
    sampled = [sum(outcome.sampled for outcome in side) for side in (filtered, unfiltered)]
    return BenchResult(
        "filter",
        {"samples_unfiltered_vs_filtered": sampled[1] / sampled[0]},
        {
            "reward_filtered": statistics.fmean(o.reward for o in filtered),
            "reward_filtered_ci": _half([o.reward for o in filtered]),
            "reward_unfiltered": statistics.fmean(o.reward for o in unfiltered),
            "reward_unfiltered_ci": _half([o.reward for o in unfiltered]),
            "reward_gap": statistics.fmean(gaps),
            "reward_gap_ci": _half(gaps),
            "samples_filtered": sampled[0],
            "samples_unfiltered": sampled[1],
            "seeds": len(filtered),
        },
        {"reward_gap": (">=", 0.0)},
    )


def _half(values: Sequence[float]) -> float:
    """Half the width of the mean's 95 % interval over seeds."""
    return T_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
