"""`python -m benchmarks attacks`: cheaters and honest workers before the validator's checks, and what checks cost.

The laptop's tiny model and SmolLM2-135M, whose version 1 is one optimizer step from version 0. Files are small, which
makes it harder to catch them. A cheater's file that is, token for token, what an honest worker hands in (the five
likeliest tokens of a sure model are all of them) is not a cheat and is not counted.

Every file is audited whole. The cost is that of one group of 16 answers of 256 tokens of SmolLM2-135M
(`validation_cost`): of an average file at the default audit rate, and of one that is audited whole.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.common.configs import base_model, changed, hardly_trained, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.generation.engine import keep_freed_memory
from benchmarks.validation.attack_testbed import File, Testbed, build_testbed, remembering
from benchmarks.validation.validation_cost import measure_cost
from shoal.attacks import ATTACKS, texts
from shoal.config import AuditConfig, RunConfig
from shoal.generate.engine import Engine
from shoal.generate.reference_engine import PlainEngine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.base import base_model_dir
from shoal.models.load import load
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.validate.calibrate.thresholds import threads

# These begin with honest answers and change them; all others that answer in their own way generate.
EDIT_ANSWERS = ("edited_tokens", "early_ending", "mean_proof")
# One bomb is handed in every time: it takes seconds to make.
ONE_FOR_ALL = "parquet_bomb"
# Files that are judged again as if their noise could not be redrawn.
FREE_FILES = 20
CAUGHT, VALIDATION, PROOF = 1.0, 0.1, 0.01
# Honest files of both models, of which none may be rejected; a quick run makes fewer.
HONEST = 1008
SMOLLM2_TASKS = [
    {
        "source": "reasoning-gym/chain_sum",
        "binary": False,
        "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    }
]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured on one model."""

    groups: int
    group_size: int
    new_tokens: int
    files: int
    """Of each attack."""
    honest: dict[int, int]
    """Files of our engine, by the sequences it decodes side by side."""
    plain: int
    """Files of plain transformers."""
    lr: float
    trained_on: int


TINY = Size(2, 8, 12, files=100, honest={1: 100, 5: 200, 64: 500}, plain=100, lr=3e-4, trained_on=64)
SMOLLM2 = Size(1, 2, 16, files=100, honest={1: 4, 3: 8, 64: 80}, plain=16, lr=1e-6, trained_on=16)
QUICK_TINY = Size(2, 8, 12, files=5, honest={1: 1, 64: 4}, plain=2, lr=3e-4, trained_on=8)
QUICK_SMOLLM2 = Size(1, 4, 8, files=2, honest={64: 2}, plain=1, lr=1e-6, trained_on=2)


@dataclass(slots=True)
class Tally:
    """Verdicts of one model, by attack; figures of honest files."""

    caught: dict[str, float] = field(default_factory=dict)
    by: dict[str, Counter[str]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)
    honest: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    rejected_free: int = 0


def bench_attacks(quick: bool, progress: Progress) -> BenchResult:
    """All figures. `quick` measures SmolLM2 only if it is in the cache."""
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    keep_freed_memory()
    laptop = laptop_config()
    if quick:
        laptop = hardly_trained(laptop)
    tallies = {"tiny": _measure("tiny", laptop, QUICK_TINY if quick else TINY, progress)}
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {}
    smollm2 = changed(laptop, {"model.source": "smollm2", "tasks": SMOLLM2_TASKS, "sampling.max_prompt_tokens": 128})
    if quick and not base_model_dir(smollm2).is_dir():
        values["smollm2"] = "left out by --quick: it is not in the cache"
    else:
        tallies["smollm2"] = _measure("smollm2", smollm2, QUICK_SMOLLM2 if quick else SMOLLM2, progress)
        _costs(changed(smollm2, {"sampling.max_new_tokens": 16 if quick else 256}), ratios, values, progress)
    return _result(tallies, ratios, values, quick=quick)


def _costs(config: RunConfig, ratios: dict[str, float], values: dict[str, Figure], progress: Progress) -> None:
    for name, samples, batch in (("", 16, config.workers.max_batch), ("_one_by_one", 2, 1)):
        progress.stage(f"cost: {samples} answers, {min(samples, batch)} side by side")
        found = measure_cost(config, samples, batch)
        ratios[f"validation_vs_generation_cpu{name}"] = found.validating(AuditConfig().rate) / found.generating
        ratios[f"whole_audit_vs_generation_cpu{name}"] = found.validating(1.0) / found.generating
        ratios[f"proof_vs_generation_cpu{name}"] = found.proving / found.generating
        values[f"generation_cpu_ms_per_token{name}"] = 1e3 * found.generating / found.tokens
        values[f"whole_audit_cpu_ms_per_token{name}"] = 1e3 * found.validating(1.0) / found.tokens
    values["audit_rate"] = AuditConfig().rate


def _result(
    tallies: dict[str, Tally], ratios: dict[str, float], values: dict[str, Figure], *, quick: bool = False
) -> BenchResult:
    bars: dict[str, tuple[Op, float]] = {}
    for figure, bar in (("validation_vs_generation_cpu", VALIDATION), ("proof_vs_generation_cpu", PROOF)):
        if figure in ratios:
            bars[figure] = ("<=", bar)
    for attack in ATTACKS:
        values[f"caught.{attack}"] = min(tally.caught[attack] for tally in tallies.values())
        bars[f"caught.{attack}"] = (">=", CAUGHT)
        values |= {f"caught_{model}.{attack}": tally.caught[attack] for model, tally in tallies.items()}
        values |= {f"files_{model}.{attack}": tally.counted[attack] for model, tally in tallies.items()}
        checks = sum((tally.by[attack] for tally in tallies.values()), Counter[str]())
        values[f"by.{attack}"] = ", ".join(f"{check} {count}" for check, count in checks.most_common())
    for model, tally in tallies.items():
        values |= {f"caught_free_{model}.{attack}": rate for attack, rate in tally.free.items()}
        values[f"honest_files_{model}"] = tally.honest
    values["honest_files"] = sum(tally.honest for tally in tallies.values())
    values["honest_rejected"] = sum(tally.rejected.total() for tally in tallies.values())
    values["honest_rejected_free"] = sum(tally.rejected_free for tally in tallies.values())
    if any(tally.rejected for tally in tallies.values()):
        values["honest_rejected_by"] = str(sum((tally.rejected for tally in tallies.values()), Counter[str]()))
    bars["honest_rejected"] = ("<=", 0)
    if not quick:
        bars["honest_files"] = (">=", HONEST)
    return BenchResult("attacks", ratios, values, bars)


def sized(config: RunConfig, size: Size) -> RunConfig:
    return changed(
        config,
        {
            "sampling.group_size": size.group_size,
            "sampling.max_new_tokens": size.new_tokens,
            "sampling.temperature": 1.0,
            "workers.groups_per_submission": size.groups,
        },
    )


def _measure(name: str, config: RunConfig, size: Size, progress: Progress) -> Tally:
    directory = base_model(config, progress)
    config = sized(config, size)
    progress.stage(f"{name}: loading, and one training step")
    policy = load(directory, config.model.dtype)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="shoal-attacks-") as scratch, Scorer(config.tasks) as judge:
        tasks = build_source(config.tasks)
        testbed = build_testbed(config, policy, tasks, judge, Path(scratch), size.trained_on, size.lr)
        _honest(name, testbed, directory, size, tally, progress)
        _attacks(name, testbed, size, tally, progress)
    return tally


def _honest(name: str, testbed: Testbed, directory: Path, size: Size, tally: Tally, progress: Progress) -> None:
    """Honest files of every kind of worker, each judged by every kind of validator."""
    config = testbed.config
    temperature = config.sampling.temperature
    made: list[File] = []

    def make(what: str, engine: Engine, count: int) -> None:
        for number in (1, 2):
            progress.stage(f"{name}: honest files: {what}, {number} threads")
            with threads(number):
                leases = testbed.leases((count + 1) // 2, first=len(made), node="honest")
                made.extend(testbed.honest(leases, engine)[1])

    for batch, count in size.honest.items():
        engine = TorchEngine(testbed.policy, max_batch=batch, max_len=config.max_len, temperature=temperature)
        make(f"engine, {batch} side by side", engine, count)
    make("plain transformers", PlainEngine(directory, testbed.policy, config.model.dtype, temperature), size.plain)
    tally.honest = len(made)
    unpacked = changed(config, {"audit.token_budget": config.max_len})
    free = changed(config, {"sampling.mode": "free"})
    refused: dict[int, str] = {}
    for what, count, judge in (("packed", 2, config), ("hardly packed", 1, unpacked), ("free sampling", 2, free)):
        some = made[:: max(1, len(made) // (10 * FREE_FILES))] if judge is free else made
        progress.stage(f"{name}: judging {len(some)} honest files: {what}, {count} threads")
        with threads(count):
            verdicts = testbed.judged(some, judge)
        if judge is free:
            tally.rejected_free = sum(bool(check) for check in verdicts)
        else:
            refused |= {number: check for number, check in enumerate(verdicts) if check}
    tally.rejected.update(refused.values())


def _attacks(name: str, testbed: Testbed, size: Size, tally: Tally, progress: Progress) -> None:
    leases = testbed.leases(size.files)
    progress.stage(f"{name}: honest answers for cheaters to start from")
    recorded, honest = testbed.honest(leases, testbed.engine)
    free = changed(testbed.config, {"sampling.mode": "free"})
    for number, (attack, kind) in enumerate(ATTACKS.items(), 1):
        progress.stage(f"{name}: attack {number} of {len(ATTACKS)}, {attack}: making {size.files} files")
        if attack == ONE_FOR_ALL:
            files = testbed.cheating(kind, leases[:1], recorded, False) * size.files
        else:
            files = testbed.cheating(kind, leases, recorded, attack not in EDIT_ANSWERS)
        text_only = kind.__module__ == texts.__name__
        if text_only:
            files = [f for f, h in zip(files, honest, strict=True) if asked(f) != asked(h)]
        progress.detail(f"judging {len(files)} files")
        with remembering(testbed.computed):
            verdicts = testbed.judged(files)
        tally.counted[attack] = len(files)
        tally.by[attack] = Counter(check or "not caught" for check in verdicts)
        tally.caught[attack] = _rate(verdicts)
        if text_only:
            progress.detail("judging some as if sampling were free")
            tally.free[attack] = _rate(testbed.judged(files[:FREE_FILES], free))


def asked(file: File) -> list[tuple[Sequence[int], Sequence[int]]]:
    """The texts of a file."""
    return [(sample.prompt.tolist(), sample.completion.tolist()) for sample in file.submission.rollouts]


def _rate(verdicts: Sequence[str]) -> float:
    return sum(bool(check) for check in verdicts) / len(verdicts) if verdicts else 1.0
