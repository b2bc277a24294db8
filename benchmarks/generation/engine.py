"""`python -m benchmarks engine`: our engine against transformers `generate`; how full packing is; the cost of sampling.

256 prompts whose answers are 8 to 256 tokens long, in no order. On the tiny model each side gets the better of two
batch sizes and the best of several rounds, taken in turns. SmolLM2-135M gets one long round, in which `generate` is
timed on the first of its batches only: all of them would take many minutes.
"""

import ctypes
import importlib.util
import math
import os
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.generation.sides import Generate, Ours, ragged_work, vllm_tokens_per_s
from benchmarks.generation.tail import QUICK, TIMES, TailSize, measure_tail
from benchmarks.generation.tail import SIZE as TAIL
from shoal.config import RunConfig
from shoal.errors import ModelError
from shoal.generate.torch_engine import TorchEngine
from shoal.models.base import base_model_dir
from shoal.models.load import Policy, load
from shoal.process import KEEP_FREED_MEMORY
from shoal.protocol.rollout import bare_rollout
from shoal.rl.bin_packing import fill, first_fit_decreasing
from shoal.tasks.build import build_source
from shoal.train.batch import Group, pack

PACKED_SAMPLES = 4096
PACKED_PROMPT = 32
PACKED_GROUP = 16
BUDGET = 4096
# glibc's names for what KEEP_FREED_MEMORY sets through the environment.
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    prompts: int
    longest: int
    batches: tuple[int, ...]
    rounds: int
    generate_prompts: int


TINY = Size(prompts=256, longest=256, batches=(64, 256), rounds=3, generate_prompts=256)
SMOLLM2 = Size(prompts=256, longest=256, batches=(64,), rounds=1, generate_prompts=64)
QUICK_TINY = Size(prompts=16, longest=32, batches=(16,), rounds=1, generate_prompts=16)
QUICK_SMOLLM2 = Size(prompts=16, longest=24, batches=(8,), rounds=1, generate_prompts=8)


@dataclass(slots=True)
class Findings:
    """Figures as they come in."""

    ratios: dict[str, float] = field(default_factory=dict)
    values: dict[str, Figure] = field(default_factory=dict)
    bars: dict[str, tuple[Op, float]] = field(default_factory=dict)


def bench_engine(quick: bool, progress: Progress) -> BenchResult:
    """All figures of the engine benchmark. `quick` measures SmolLM2 only if it is already expanded."""
    threads = os.cpu_count() or 1
    torch.set_num_threads(threads)
    keep_freed_memory()
    found = Findings(values={"threads": threads})
    _packing(found)
    config = laptop_config()
    if quick:
        config = changed(config, {"model.tiny.warm_steps": 0})  # speed does not depend on what the weights say
    _compare("tiny", config, QUICK_TINY if quick else TINY, found, progress)
    smollm2 = changed(config, {"model.source": "smollm2"})
    if quick and not base_model_dir(smollm2).is_dir():
        found.values["smollm2"] = "left out by --quick: it is not in the cache"
    else:
        try:
            _compare("smollm2", smollm2, QUICK_SMOLLM2 if quick else SMOLLM2, found, progress)
        except ModelError as error:  # not installable: the rest is still worth showing
            found.values["smollm2"] = str(error)
    return BenchResult("engine", found.ratios, found.values, found.bars)


def keep_freed_memory() -> None:
    """Gives both sides the allocator settings of our roles; by a call, since glibc reads its variables at the start."""
    with suppress(OSError, AttributeError):  # another C library: both sides do without
        mallopt = ctypes.CDLL(None).mallopt
        for name, parameter in MALLOPT.items():
            mallopt(parameter, min(int(KEEP_FREED_MEMORY[name]), 2**31 - 1))


def _compare(name: str, config: RunConfig, size: Size, found: Findings, progress: Progress) -> None:
    """Both sides on one model, in turns."""
    directory = base_model(config, progress)
    progress.stage(f"{name}: loading the model")
    policy = load(directory)
    ours, generate = Ours(policy), Generate(directory)
    work = ragged_work(policy, build_source(config.tasks), size.prompts, size.longest)
    part = work.first(size.generate_prompts)
    for batch in size.batches:  # first calls are slow on both sides
        ours.tokens_per_s(work.first(2), batch)
        generate.tokens_per_s(work.first(2), batch)
    best = {(side, batch): 0.0 for side in ("ours", "generate") for batch in size.batches}
    for round_ in range(size.rounds):
        for batch in size.batches:
            progress.stage(f"{name}: round {round_ + 1} of {size.rounds}, batch {batch}: ours")
            best["ours", batch] = max(best["ours", batch], ours.tokens_per_s(work, batch))
            progress.stage(f"{name}: round {round_ + 1} of {size.rounds}, batch {batch}: generate")
            best["generate", batch] = max(best["generate", batch], generate.tokens_per_s(part, batch))
    batch_of = {side: max(size.batches, key=lambda b: best[side, b]) for side in ("ours", "generate")}
    speed, peer = (best[side, batch_of[side]] for side in ("ours", "generate"))
    found.ratios[f"{name}_vs_generate"] = speed / peer
    found.bars[f"{name}_vs_generate"] = (">=", 2.5)
    found.values |= {
        f"{name}_tokens_per_s": speed,
        f"{name}_batch": batch_of["ours"],
        f"{name}_prompts": size.prompts,
        f"{name}_generate_tokens_per_s": peer,
        f"{name}_generate_batch": batch_of["generate"],
        f"{name}_generate_prompts": size.generate_prompts,
    }
    if name == "tiny":
        progress.stage(f"{name}: one long answer per lease")
        _tail(policy, work.prompts, QUICK if size is QUICK_TINY else TAIL, found)
    if name == "smollm2":
        batch = size.batches[0]
        progress.stage(f"{name}: share of sampling at batch {batch}")
        found.values["sampling_share"] = ours.sampling_share(work.prompts[0], batch, size.longest // 8)
        found.values["vocabulary"] = policy.vocab
        found.bars["sampling_share"] = ("<=", 0.15)
        if importlib.util.find_spec("vllm") is None:
            found.values["vllm"] = "not installed"
        else:
            progress.stage(f"{name}: vLLM on {size.generate_prompts} prompts")
            found.values["vllm_tokens_per_s"] = vllm_tokens_per_s(directory, part, torch.get_num_threads())


def _tail(policy: Policy, prompts: list[list[int]], size: TailSize, found: Findings) -> None:
    """What heavy-tailed lengths cost a worker: its other leases fill the places that a long answer leaves empty."""
    endless = replace(policy, eos_ids=frozenset())
    longest = max(map(len, prompts)) + TIMES * size.tokens
    engine = TorchEngine(endless, max_batch=size.max_batch, max_len=longest, temperature=1.0)
    tail = measure_tail(engine, prompts, size)
    found.ratios["tail"] = tail.ratio
    found.bars["tail"] = (">=", 0.85)
    found.values |= {"tail_tokens_per_s": tail.tailed, "tail_in_turns_tokens_per_s": tail.in_turns}


def _packing(found: Findings) -> None:
    """How much of the token budget is filled: sample by sample, and as the trainer packs groups that share a prompt."""
    rng = random.Random(0)
    answers = [rng.randint(8, 256) for _ in range(PACKED_SAMPLES)]
    lengths = [PACKED_PROMPT + answer for answer in answers]
    found.values["packing_fill"] = fill(first_fit_decreasing(lengths, BUDGET), lengths, BUDGET)
    found.bars["packing_fill"] = (">=", 0.95)
    groups = [_group(answers[first : first + PACKED_GROUP]) for first in range(0, PACKED_SAMPLES, PACKED_GROUP)]
    batches = pack(groups, BUDGET)
    found.values["packing_fill_groups"] = math.fsum(batch.layout.tokens for batch in batches) / (len(batches) * BUDGET)


def _group(lengths: list[int]) -> Group:
    prompt = [1] * PACKED_PROMPT
    samples = [bare_rollout(prompt, [1] * length) for length in lengths]
    return Group(samples[0].prompt, samples, [0.0] * len(samples), 0)
