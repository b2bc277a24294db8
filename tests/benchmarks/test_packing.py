"""The packing section: both sides pack the same tokens, and its figures are there."""

import io

from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.training.packing import bench_packing


def test_arrays_and_lists_pack_the_same_tokens_and_are_compared() -> None:
    with Progress(Console(file=io.StringIO())) as progress:
        found = bench_packing(quick=True, progress=progress)
    assert float(found.values["pack_tokens"]) > 0
    assert found.ratios["pack_vs_lists"] > 0
    assert {"pack_heap_gb", "pack_lists_heap_gb"} <= found.values.keys()
