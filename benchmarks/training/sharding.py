"""`python -m benchmarks sharding`: what a trainer of several processes, its versions and its batches cost.

Each section is a benchmark of its own module; their figures are put together, and none may have a name of another's.
"""

import importlib

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op

SECTIONS = {
    "ranks": ("training.ranks", "bench_ranks"),
    "files": ("weights.sharded_files", "bench_files"),
    "pack": ("training.packing", "bench_packing"),
    "lora": ("training.adapters", "bench_adapters"),
    "plan": ("training.planned_memory", "bench_plan"),
}


def bench_sharding(quick: bool, progress: Progress) -> BenchResult:
    """All sections, one after the other."""
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {}
    bars: dict[str, tuple[Op, float]] = {}
    for module, function in SECTIONS.values():
        found: BenchResult = getattr(importlib.import_module(f"benchmarks.{module}"), function)(quick, progress)
        ratios |= found.ratios
        values |= found.values
        bars |= found.bars
    return BenchResult("sharding", ratios, values, bars)
