"""Section `lora` of the benchmark `sharding`: what a version weighs and costs where adapters are trained, and whether
such a run learns.

`lora_bytes` compares two versions of SmolLM2-135M in bfloat16: all weights, and an adapter of rank 8 on all attention
and MLP projections. `lora_merge_cpu_s` is the CPU time in which one thread merges it, `lora_check_cpu_s` that of
merging and hashing it, which a reader does before it believes a version. The run is `configs/laptop.toml` with
adapters, through the processes of `shoal run`; `lora_gain` is pass@1 of its last version less that of the base model.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.common.configs import base_model, changed, hardly_trained, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult
from benchmarks.training.length import before_and_after
from shoal.config import LoraConfig
from shoal.models.adapter_files import Merged, write_adapter
from shoal.models.load import Policy, load, trainable
from shoal.models.lora import adapter_of, attach
from shoal.models.merge import Base, MergedWeights
from shoal.models.weights import write_weights
from shoal.roles.evaluator import Evaluation

LORA = LoraConfig(rank=8, alpha=16.0)
# Three times the learning rate of the laptop run: a step of an adapter moves a weight less.
TRAIN = {"train.lora": LORA.model_dump(), "train.lr": 1e-3, "train.cooldown_steps": 20}
STEPS, HELDOUT, TIMES = 60, 512, 3


def bench_adapters(quick: bool, progress: Progress) -> BenchResult:
    """Sizes and speed on SmolLM2-135M, which a quick run leaves out for the tiny model, and the run."""
    config = changed(laptop_config(), {**TRAIN, "steps": STEPS, "audit.rate": 0.0})
    heldout = HELDOUT
    if quick:
        shorter = {"steps": 2, "train.groups_per_step": 4, "train.cooldown_steps": 0}
        config, heldout = changed(hardly_trained(config), shorter), 32
    with tempfile.TemporaryDirectory(prefix="shoal-bench-lora-") as scratch:
        progress.stage("sizes of versions")
        model = config if quick else changed(config, {"model.source": "smollm2"})
        values = sizes(load(base_model(model, progress), "bfloat16"), Path(scratch))
        progress.stage("a run with adapters")
        config = changed(config, {"model.source": str(base_model(config, progress))})
        before, after = before_and_after(config, Path(scratch) / "run", heldout, progress)
    return conclude(values, before, after)


def conclude(values: Mapping[str, float], before: Evaluation, after: Evaluation) -> BenchResult:
    return BenchResult(
        "sharding",
        {"lora_bytes": values["lora_full_bytes"] / values["lora_adapter_bytes"]},
        {
            **values,
            "lora_pass_base": before.pass_at_1,
            "lora_pass_last": after.pass_at_1,
            "lora_gain": after.pass_at_1 - before.pass_at_1,
        },
        {"lora_bytes": (">=", 25.0), "lora_gain": (">=", 0.1)},
    )


def sizes(policy: Policy, scratch: Path) -> dict[str, float]:
    """Both kinds of version, written; and the adapter merged."""
    weights = {name: tensor.clone() for name, tensor in policy.weights().items()}
    attach(policy.model, LORA, seed=0)
    with torch.no_grad():
        for name, parameter in trainable(policy.model):
            if name.endswith("lora_B"):
                parameter.normal_(std=0.01)
    adapter = adapter_of(policy.trained_weights(), LORA)
    merged = MergedWeights(Base("0" * 64, weights), adapter, "the adapter")
    full, small = scratch / "full", scratch / "adapter"
    full.mkdir()
    small.mkdir()
    write_weights(full, weights)
    write_adapter(small, adapter, Merged(base="0" * 64, dtype="bfloat16", weights=merged.root()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            "lora_full_bytes": _bytes(full),
            "lora_adapter_bytes": _bytes(small),
            "lora_merge_cpu_s": _cpu_s(lambda: [merged[name] for name in merged]),
            "lora_check_cpu_s": _cpu_s(merged.root),
        }
    finally:
        torch.set_num_threads(threads)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _cpu_s(work: Callable[[], object]) -> float:
    """The least of some times over."""
    seconds = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)
