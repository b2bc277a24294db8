"""`python -m benchmarks delta`: how small and how fast the deltas between versions of a real model are.

SmolLM2-135M, trained with our own loss and AdamW on rollouts of its own: two training steps of eight optimizer steps
each, the learning rate constant from the first on. Versions are the float32 weights rounded to bf16. Deltas are taken
from version 1, the first that training made, to one and eight optimizer steps later; those from the base model are
shown too. The preset's base model was expanded from four bits: many of its float32 weights lie exactly between two bf16
values, and whatever happens first makes half of them change.

Speeds are those of files in the page cache, on one processor, best of several rounds, by the processor time that they
take: others may be at work on the machine.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import zstandard
from safetensors.torch import save_file

from benchmarks.common.configs import base_model, changed, hardly_trained, laptop_config
from benchmarks.common.processor import one_processor
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.generation.engine import keep_freed_memory
from benchmarks.validation.attacks import SMOLLM2_TASKS
from shoal.config import RunConfig
from shoal.errors import BenchError
from shoal.generate.submission_builder import Maker
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load, trainable
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.shardcast.delta import delta
from shoal.shardcast.delta.blocks import Bits
from shoal.tasks.build import build_source
from shoal.tasks.rewards.scorer import Scorer
from shoal.train.batch import Group, sort_groups
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
from shoal.train.step import train_step

LRS = {"3e-7": 3e-7, "1e-6": 1e-6}
STEPS = 8
# Optimizer steps whose weights are kept, and the deltas taken between them.
KEPT = (0, 1, STEPS, STEPS + 1, 2 * STEPS)
PAIRS = {"1": (STEPS, STEPS + 1), "8": (STEPS, 2 * STEPS), "1_from_base": (0, 1), "8_from_base": (0, STEPS)}
ZSTD_LEVEL = 3
BARS: dict[str, tuple[Op, float]] = {
    "size_3e-7_8": (">=", 25.0),
    "size_3e-7_1": (">=", 60.0),
    "vs_entropy": ("<=", 1.6),
    "vs_xor_zstd": (">=", 1.5),
    "encode_gb_s": (">=", 0.5),
    "apply_gb_s": (">=", 1.0),
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sampled and timed."""

    group_size: int
    new_tokens: int
    groups: int
    """Sampled at a time, until there are enough with signal."""
    max_groups: int
    rounds: int


FULL = Size(group_size=4, new_tokens=24, groups=16, max_groups=128, rounds=5)
QUICK = Size(group_size=4, new_tokens=8, groups=16, max_groups=128, rounds=1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One pair of versions, in bytes."""

    full: int
    delta: int
    xor: int
    entropy: float
    changed: float
    """Share of the values."""
    one_step: float
    """Share of the changed values that moved by one step."""


def bench_delta(quick: bool, progress: Progress) -> BenchResult:
    """All figures. `quick` takes the laptop's tiny model, hardly trained."""
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    keep_freed_memory()
    config = laptop_config()
    if quick:
        config = hardly_trained(config)
    else:
        smollm2 = {"model.source": "smollm2", "tasks": SMOLLM2_TASKS, "sampling.max_prompt_tokens": 128}
        config = changed(config, smollm2)
    directory = base_model(config, progress)
    return measure(config, directory, QUICK if quick else FULL, progress)


def measure(config: RunConfig, directory: Path, size: Size, progress: Progress) -> BenchResult:
    """Trains at each rate, and measures what its versions' deltas take."""
    config = changed(
        config,
        {
            "sampling.group_size": size.group_size,
            "sampling.max_new_tokens": size.new_tokens,
            "sampling.temperature": 1.0,
            "workers.groups_per_submission": size.groups,
            "train.groups_per_step": STEPS,
            "train.optimizer_steps": STEPS,
            "train.warmup_steps": 0,
            "train.cooldown_steps": 0,
            "train.weight_decay": 0.01,
            "train.grad_clip": 0.1,
            "train.loss.kl_coef": 0.0,  # the base model is the policy itself, or nearly
        },
    )
    progress.stage("loading the model, and sampling")
    policy = load(directory)
    groups = sample(config, policy, size, progress)
    before = {name: tensor.clone() for name, tensor in policy.weights().items()}
    sizes: dict[str, Sizes] = {}
    speeds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-delta-") as scratch:
        for name, lr in LRS.items():
            policy.set_weights(before, "the base model")
            versions = train(changed(config, {"train.lr": lr}), policy, groups, Path(scratch), f"lr {name}", progress)
            for pair, (old, new) in PAIRS.items():
                progress.stage(f"lr {name}: the delta from optimizer step {old} to {new}")
                sizes[f"{name}_{pair}"] = compare(versions[old], versions[new])
            if not speeds:
                with one_processor():
                    for worst, (old, new) in (("", PAIRS["8"]), ("_from_base", PAIRS["8_from_base"])):
                        progress.stage(f"speed: optimizer step {old} to {new}")
                        speeds |= {
                            f"{what}{worst}_gb_s": speed
                            for what, speed in time_pair(versions[old], versions[new], size.rounds).items()
                        }
    return _result(sizes, speeds, len(groups))


def _result(sizes: dict[str, Sizes], speeds: dict[str, float], groups: int) -> BenchResult:
    ratios = {f"size_{name}": found.full / found.delta for name, found in sizes.items()}
    ratios["vs_entropy"] = max(found.delta / found.entropy for found in sizes.values())
    ratios["vs_xor_zstd"] = min(found.xor / found.delta for found in sizes.values())
    for what in ("encode", "apply"):
        ratios[f"{what}_vs_copy"] = speeds[f"{what}_gb_s"] / speeds["copy_gb_s"]
        ratios[f"{what}_vs_file_copy"] = speeds[f"{what}_gb_s"] / speeds["file_copy_gb_s"]
    values: dict[str, Figure] = dict(speeds)
    for name, found in sizes.items():
        values[f"delta_bytes_{name}"] = found.delta
        values[f"changed_{name}"] = found.changed
        values[f"one_step_{name}"] = found.one_step
        values[f"entropy_ratio_{name}"] = found.full / found.entropy
        values[f"xor_zstd_ratio_{name}"] = found.full / found.xor
    values["full_bytes"] = max(found.full for found in sizes.values())
    values["groups_with_signal"] = groups
    return BenchResult("delta", ratios, values, BARS)


def sample(config: RunConfig, policy: Policy, size: Size, progress: Progress) -> list[Group]:
    """Groups of the base model's own answers that teach something, one for each optimizer step."""
    needed = 2 * STEPS
    engine = TorchEngine(policy, max_batch=64, max_len=config.max_len, temperature=config.sampling.temperature)
    found: list[Group] = []
    with Scorer(config.tasks) as judge:
        maker = Maker(config, policy, engine, build_source(config.tasks), judge)
        for number in range(size.max_groups // size.groups):
            lease = Lease("bench", "worker-0", 0, number, 0, size.groups, 7, 4e9)
            made = sort_groups([maker.make(lease, Version(0, "5a" * 32))], normalise=config.train.advantage_std)
            found += made.signal
            progress.detail(f"{len(found)} of {needed} groups with signal")
            if len(found) >= needed:
                return found[:needed]
    raise BenchError(f"bench delta: {len(found)} of {size.max_groups} groups had signal, {needed} are needed")


def train(
    config: RunConfig, policy: Policy, groups: Sequence[Group], folder: Path, name: str, progress: Progress
) -> dict[int, Path]:
    """Two training steps; the versions after the optimizer steps in `KEPT`, as files."""
    settings = config.train
    optimizer = AdamW(
        [p for _, p in trainable(policy.model)],
        lr=settings.lr,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )
    files = {step: folder / f"{step}.safetensors" for step in KEPT}
    done = 0

    def keep() -> None:
        if done in files:
            save_file({n: t.bfloat16().contiguous() for n, t in policy.weights().items()}, files[done])

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        progress.detail(f"optimizer step {done} of {2 * STEPS}")
        keep()

    progress.stage(f"{name}: training")
    keep()
    optimizer.register_step_post_hook(count)
    for step in range(2):
        train_step(alone(policy, None, optimizer), groups[step * STEPS : (step + 1) * STEPS], config, step)
    if done != 2 * STEPS:
        raise BenchError(f"bench delta: {done} of {2 * STEPS} optimizer steps were made: a loss was not finite")
    return files


def compare(old: Path, new: Path) -> Sizes:
    """What a delta takes, and what it could: XOR and zstd, and the entropy of which values changed and by how much."""
    made = new.with_suffix(".delta")
    stats = delta.encode(old, new, made)
    made.unlink()
    a, b = bits(old), bits(new)
    steps = ordered(b) - ordered(a)
    moved = steps[steps != 0]
    share = moved.size / a.size
    entropy = a.size * entropy_of([moved.size, a.size - moved.size]) + moved.size * entropy_of(
        np.unique(moved, return_counts=True)[1]
    )
    xor = len(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress((a ^ b).tobytes()))
    one_step = float((np.abs(moved) == 1).mean()) if moved.size else 1.0
    return Sizes(stats.full_bytes, stats.delta_bytes, xor, entropy / 8, share, one_step)


def bits(path: Path) -> Bits:
    """All values of a file of bf16, in a row."""
    content = np.fromfile(path, np.uint8)
    header = 8 + int.from_bytes(content[:8].tobytes(), "little")
    return content[header:].view(np.uint16)


def ordered(values: Bits) -> np.typing.NDArray[np.int32]:
    """The places of values in the order of the reals."""
    return np.where(values & 0x8000, 0xFFFF - values.astype(np.int32), values.astype(np.int32) + 0x8000)


def entropy_of(counts: Sequence[int] | np.typing.NDArray[np.int64]) -> float:
    """Bits a symbol."""
    share = np.asarray([count for count in counts if count]) / max(1, sum(counts))
    return float(-(share * np.log2(share)).sum())


def time_pair(old: Path, new: Path, rounds: int) -> dict[str, float]:
    """GB of full weights a second of processor time, in turns.

    From file to file, with the hash of the new file and with both; in memory, without files and hashes; plain copies.
    """
    made, out = new.with_suffix(".delta"), new.with_suffix(".rebuilt")
    known = delta.hash_of(old)
    a, b = bits(old), bits(new)
    tensor = delta.encode_tensor(a, b)
    target = np.empty_like(a)
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: delta.encode(old, new, made, base_hash=known),
        "encode_hashing_base": lambda: delta.encode(old, new, made),
        "apply": lambda: delta.apply(old, made, out, base_is_verified=True),
        "apply_hashing_base": lambda: delta.apply(old, made, out),
        "encode_memory": lambda: delta.encode_tensor(a, b),
        "apply_memory": lambda: delta.apply_tensor(tensor, a, target),
        "copy": lambda: np.copyto(target, a),
        "file_copy": lambda: _copy(old, out),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            out.unlink(missing_ok=True)
            began = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - began)
    return {name: a.nbytes / seconds / 1e9 for name, seconds in best.items()}


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        while part := old.read(1 << 19):
            new.write(part)
