"""`python -m benchmarks verification`: honest machines and cheats before the numeric judge of bfloat16 runs.

The laptop's tiny model and SmolLM2-135M, each some training steps from its base, computed in 15 honest ways, by vLLM as
well where `SHOAL_VLLM_PYTHON` names an interpreter that has it, and by seven cheats. Odds are those that come with
Shoal, which were measured on other texts. Each way is also judged by odds that were measured without it. Tokens until a
ban are those that the judge recomputed of a new node, at a probability of 1e-6 that an honest node is ever banned; a
cheat's row is on the hardware of one honest way (`tokens_int8.tp4.tiny`).
"""

import math
import os
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.common.configs import changed, checkout_config, hardly_trained, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.generation.engine import keep_freed_memory
from benchmarks.validation.file_cost import measure_file_cost
from benchmarks.validation.numeric_lives import (
    files_until_ban,
    live,
    tokens_after_turning,
    tokens_until_ban,
    validity,
    weighed_files,
)
from benchmarks.validation.numeric_testbed import CHEATS, EDITED, LAUNDERED, Sight, Size, look, not_best
from shoal.config import AuditConfig
from shoal.protocol.rates.shipped import default_rates
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.bets import Bets, Observed
from shoal.validate.numerics.judge import Weighed
from shoal.validate.numerics.ways import WAYS

TINY = Size(1024, 64, 8, 256, tuple(WAYS), steps=4)
SMOLLM2 = Size(16, 128, 2, 16, ("flash", "tp8-eager"), steps=2)
QUICK = Size(16, 64, 8, 16, ("flash",), steps=1)
# The file whose cost is measured: a quarter of the default groups, with the same share of spot checks.
COST = {
    "sampling.group_size": 16,
    "sampling.max_new_tokens": 256,
    "workers.groups_per_submission": 2,
    "workers.max_batch": 128,
    "train.groups_per_step": 32,
}
Costs = tuple[dict[str, float], dict[str, float]]
NODES = 15
# Tokens of a file in which a cheat edits one: 16 answers of 256.
EDITED_FILE = 4096
MAX_EDITED = 64
# The hardware that a cheat's headline figure is stated for.
USUAL = "flash"
# Shares of files past the probation that are compared with other weights: the default, and more.
SHIFT_RATES = (AuditConfig().shift_rate, 0.25, 1.0)
BARS: dict[str, tuple[Op, float]] = {
    "honest_files": (">=", 2000),
    "honest_blamed": ("<=", 0),
    "left_out_blamed": ("<=", 0),
    "validity": ("<=", 1.0),
    "tokens_int4": ("<=", 1_000),
    "tokens_int8": ("<=", 20_000),
    "tokens_older_version": ("<=", 20_000),
    "tokens_temperature": ("<=", 20_000),
    "tokens_smaller_model": ("<=", 20_000),
    "edited_files": ("<=", 20),
}


def bench_verification(quick: bool, progress: Progress) -> BenchResult:
    """All figures. `quick` measures the tiny model alone, hardly trained."""
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    keep_freed_memory()
    laptop = changed(laptop_config(), {"model.dtype": "bfloat16"})
    if quick:
        sizes, configs = {"tiny": QUICK}, {"tiny": hardly_trained(laptop)}
    else:
        sizes = {"tiny": TINY, "smollm2": SMOLLM2}
        smollm2 = changed(checkout_config("smollm2.toml"), {"model.dtype": "bfloat16", "sampling.temperature": 1.0})
        configs = {"tiny": laptop, "smollm2": smollm2}
    sights = {name: look(name, configs[name], size, progress) for name, size in sizes.items()}
    costs = None if quick else measure_file_cost(changed(configs["smollm2"], COST), progress)
    return result(sights, sizes, costs, progress)


def result(
    sights: Mapping[str, Sight], sizes: Mapping[str, Size], costs: Costs | None, progress: Progress
) -> BenchResult:
    """Judges what is seen of the machines."""
    ratios, values = (costs[0], dict[str, Figure](costs[1])) if costs else ({}, {})
    bars = BARS | ({"validation_vs_generation_cpu": ("<=", 0.08)} if costs else {})
    left_out: list[Weighed] = []
    for name, sight in sights.items():
        progress.stage(f"{name}: judging")
        found, files = _honest(sight, sizes[name])
        left_out += files
        found |= _cheats(sight, sizes[name])
        for other, times in sight.distances.items():
            found |= {f"distance.{other}": times, f"ideal_tokens.{other}": ideal_tokens(times)}
        values |= {f"{figure}.{name}": value for figure, value in found.items()}
    values["honest_ways"] = len(set[str]().union(*(sight.honest for sight in sights.values())))
    for figure in ("honest_files", "honest_blamed", "left_out_blamed"):
        values[figure] = sum(int(values[f"{figure}.{name}"]) for name in sights)
    values["honest_worst_nats"] = max(float(values[f"honest_worst_nats.{name}"]) for name in sights)
    values["validity"] = validity(left_out)
    for figure in (*(f"tokens_{cheat}" for cheat in CHEATS), "edited_files"):
        values[figure] = max(int(values[f"{figure}.{USUAL}.{name}"]) for name in sights)
    return BenchResult("verification", ratios, values, bars)


def ideal_tokens(distance: float) -> float:
    """Tokens that the best possible test on log-probs needs on average (likelihood ratio), if it is told that noise is
    Gaussian and which other computation it has to look for: each token is worth distance^2 / 2 nats."""
    return 2 * BAN_NATS / distance**2


def _honest(sight: Sight, size: Size) -> tuple[dict[str, Figure], list[Weighed]]:
    """One node per way, judged by all odds and by those that were measured without its way; and its files by these,
    each compared with every other computation."""
    rates, audit = default_rates(), AuditConfig()
    blamed, every, by_way = Counter[str](), list[Weighed](), dict[str, Figure]()
    worst, worst_way = -math.inf, ""
    for node, (way, answers) in enumerate(sight.honest.items()):
        for figure, known in (("honest_blamed", rates), ("left_out_blamed", rates.without(way))):
            files = weighed_files(answers, size.answers, Bets(known), sight.noise)
            life = live(files, audit, node, sum(file.tokens for file in files), to_the_end=True)
            blamed[figure] += life.blamed + life.banned
            blamed["dropped"] += life.dropped
            if life.worst > worst:
                worst, worst_way = life.worst, way
        every += files
        by_way[f"honest_worst_file.{way}"] = max(file.total for file in files)
    return by_way | {
        "honest_files": len(every),
        "honest_blamed": blamed["honest_blamed"],
        "left_out_blamed": blamed["left_out_blamed"],
        "honest_dropped": blamed["dropped"],
        "honest_worst_nats": worst,
        "honest_worst_way": worst_way,
        "honest_worst_file": max(file.total for file in every),
        "validity": validity(every),
    }, every


def _cheats(sight: Sight, size: Size) -> dict[str, Figure]:
    bets, audit, found = Bets(default_rates()), AuditConfig(), dict[str, Figure]()
    for (cheat, way), answers in sight.cheats.items():
        if cheat == EDITED:
            files = [Weighed(bets.nats(file, sight.noise), EDITED_FILE) for file in edited_files(sight, size, way)]
            found[f"edited_files.{way}"] = files_until_ban(files, audit, NODES)
        else:
            files = weighed_files(answers, size.answers, bets, sight.noise)
            found[f"tokens_{cheat}.{way}"] = tokens_until_ban(files, audit, NODES)
            if way == USUAL:
                honest = weighed_files(sight.honest[way], size.answers, bets, sight.noise)
                for rate in SHIFT_RATES:
                    rated = audit.model_copy(update={"shift_rate": rate})
                    found[f"late_tokens_{cheat}.shift_{rate:g}"] = tokens_after_turning(honest, files, rated, NODES)
        if cheat == LAUNDERED:
            found[f"not_best_{cheat}_vs_honest.{way}"] = not_best(answers) / max(not_best(sight.honest[way]), 1e-9)
    return found


def edited_files(sight: Sight, size: Size, way: str) -> list[list[Observed]]:
    """Files of 4,096 tokens of which one was edited. If honest answers are too few, a file holds some of them twice."""
    honest, edited, rng = sight.honest[way], sight.cheats[EDITED, way], np.random.default_rng(0)
    count = EDITED_FILE // size.tokens - 1
    return [
        [answer, *(honest[n] for n in rng.choice(len(honest), count, replace=len(honest) < count))]
        for answer in edited[:MAX_EDITED]
    ]
