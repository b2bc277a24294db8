"""`python -m benchmarks economics`: what a cheater gains with the default config, and how much of a step it fills.

Gains are in honest files' pay, over honest work: one key that hands in a file per step, and ten keys that hand in one
every ten steps each, in closed form (`shoal.validate.economics`). The same is simulated with the validator's own draws
and the ledger's own rules. `before.*` is what the same cheater gained when whole files were drawn at a rate of 0.1 and
one answer of every other file, each answer as likely as any other.

Then keys strike in one step, each with one file. The answers that pass are set against those that a step is trained on.
"""

import statistics
from typing import Literal

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.validation.economics_simulation import LENGTH, recomputed_share, simulated_gains, simulated_strike
from shoal.config import RunConfig, TaskConfig
from shoal.validate.economics import (
    LENGTHS,
    Sampling,
    answers_per_file,
    answers_per_step,
    gain,
    gain_of_file,
    poisoned_share,
    worst,
    worst_strike,
)

BEFORE = Sampling(rate=0.1, by_tokens=0, by_answers=1)
# Of 128 answers; a share of a file in other configs.
FAKES = (1, 2, 4, 8, 13, 30, 64, 96, 128)
# One fast node, and as many files of ten slow keys.
SHAPES = {"fast": 1, "slow": 10}
FILES_PER_STEP = 1.0
# How much longer than an honest answer the longest is, in the table.
LONG = 8.0
SIMULATED = 8
SHORTEST = 1 / LENGTH
STRIKING = (10, 100)


def default_config() -> RunConfig:
    """Every setting that has a default has it."""
    return RunConfig(name="economics", steps=1000, tasks=[TaskConfig(source="reasoning-gym/spell_backward")])


def bench_economics(quick: bool, progress: Progress) -> BenchResult:
    config = default_config()
    answers, of_step = answers_per_file(config), answers_per_step(config)
    sampling = Sampling.of(config.audit, answers)
    progress.stage("closed forms")
    values: dict[str, Figure] = {"answers_per_file": answers, "answers_per_step": of_step}
    values["worst_gain"] = max(worst(config, keys, FILES_PER_STEP)[0] for keys in SHAPES.values())
    values["worst_gain_of_file"] = max(
        gain_of_file(sampling, k / answers, length) for k in range(1, answers + 1) for length in LENGTHS
    )
    values["before.worst_gain"] = max(worst(config, keys, 1.0, BEFORE, LONG)[0] for keys in SHAPES.values())
    for name, keys in SHAPES.items():
        for k in FAKES:
            values[f"gain_{name}.{k}"] = _gain(config, k, keys)
            values[f"before.gain_{name}.{k}"] = _gain(config, k, keys, BEFORE)
    progress.stage("simulated keys")
    for name, keys in SHAPES.items():
        found = simulated_gains(config, SIMULATED, keys, LONG, 20 if quick else 200)
        values[f"simulated_gain_{name}.{SIMULATED}"] = keys * statistics.mean(found)
        values[f"simulated_gain_{name}.{SIMULATED}_error"] = keys * statistics.stdev(found) / len(found) ** 0.5
    progress.stage("simulated strikes")
    rounds = 20 if quick else 1000
    values["poisoned_share_bound"] = poisoned_share(config)
    for name, length in (("short", SHORTEST), ("usual", 1.0)):
        expected, fakes = worst_strike(sampling, answers, length)
        values[f"poisoned_share_expected.{name}"] = expected / of_step
        for keys in STRIKING:
            struck = sorted(simulated_strike(config, fakes, length, keys, seed) for seed in range(rounds))
            values[f"poisoned_share.{name}.{keys}_keys"] = statistics.mean(struck) / of_step
            values[f"poisoned_share_p99.{name}.{keys}_keys"] = struck[int(0.99 * rounds)] / of_step
    values["poisoned_share"] = values[f"poisoned_share.short.{STRIKING[-1]}_keys"]
    ratios = {"recomputed_tokens": recomputed_share(config, 5000)}
    bars: dict[str, tuple[Literal[">=", "<="], float]] = {
        "worst_gain": ("<=", 0.0),
        "worst_gain_of_file": ("<=", 0.0),
        "poisoned_share": ("<=", 0.05),
        "recomputed_tokens": ("<=", 0.145),
    }
    return BenchResult("economics", ratios, values, bars)


def _gain(config: RunConfig, fakes: int, keys: int, sampling: Sampling | None = None) -> float:
    share = fakes / answers_per_file(config)
    return gain(config, share, keys, FILES_PER_STEP, length=LONG, sampling=sampling)
