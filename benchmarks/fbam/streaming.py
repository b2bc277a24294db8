"""Exact streaming gradient against automatic differentiation of the whole sequence: error, memory and time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.common.progress import Progress
from benchmarks.fbam.jobs import ask_child
from shoal.fbam import FrameShape, ModelConfig, build_model, streamed_gradient
from shoal.fbam.frames import CHANNELS
from tests.support.fbam_gradients import autograd_gradients, largest_error, taken_gradients

SHAPE = FrameShape(rows=8, columns=16)
MODEL = ModelConfig(shape=SHAPE, actions=64, head_width=32, conv_stages=2, head_blocks=1, head_heads=4, width=64)
BATCH = 2
# Enough that what grows with length outweighs what kernels need once, some 40 MB.
MEMORY_BATCH = 4
CHUNK = 64
CHUNKS = (1, 7, 64, 1000)
ERROR_LENGTH = 150
REPEATS = 3
# glibc keeps large blocks that were freed, a number that differs from process to process, unless its threshold is
# fixed: freed memory then goes back to the system, and what is measured is what the gradient needs.
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "131072"}
MEMORY_REPEATS = 3
MEMORY_SIDES: Mapping[str, tuple[Sequence[int], int | None, Mapping[str, str]]] = {
    "streamed": ((256, 1024, 4096), CHUNK, RETURNING),
    "full": ((256, 512, 1024), None, RETURNING),
    "keeping": ((256, 4096), CHUNK, {}),
}
TIME_LENGTHS = {"full": 512, "short": 256, "long": 4096}
TIME_NAMES = {"full": "full_512", "streamed": "streamed_512", "short": "streamed_256", "long": "streamed_4096"}


@dataclass(frozen=True, slots=True)
class PatternStream:
    """Frames and actions that are computed when they are read, so that no data is in memory but the model's own."""

    length: int
    batch: int = BATCH

    def frames(self, begin: int, end: int) -> torch.Tensor:
        time, cell = self._time(begin, end), torch.arange(CHANNELS * SHAPE.rows * SHAPE.columns)
        values = (time[..., None] * 31 + cell * cell * 7) % SHAPE.colours
        return values.to(torch.uint8).view(*time.shape, CHANNELS, SHAPE.rows, SHAPE.columns)

    def targets(self, begin: int, end: int) -> torch.Tensor:
        return self._time(begin, end) ** 2 % MODEL.actions

    def _time(self, begin: int, end: int) -> torch.Tensor:
        return torch.arange(begin, end)[None] + torch.arange(self.batch)[:, None] * 1009


def measure_error(_: bool, progress: Progress) -> dict[str, float]:
    """How far the streamed gradient is from automatic differentiation of the whole sequence."""
    progress.stage("gradient: streamed against whole")
    return {
        "gradient_error_float64": gradient_error(torch.float64),
        "gradient_error_float32": gradient_error(torch.float32),
    }


def measure_memory(quick: bool, progress: Progress) -> dict[str, float]:
    """Peak memory of a gradient by length, with and without what the allocator does not return; medians over fresh
    processes, because what the allocator keeps of freed blocks differs from process to process."""
    progress.stage("gradient: memory")
    peaks: dict[str, list[float]] = {}
    for repeat in range(1 if quick else MEMORY_REPEATS):
        for side, (lengths, chunk, environment) in MEMORY_SIDES.items():
            for length in lengths:
                progress.detail(f"repeat {repeat + 1}: {side}, {length} frames")
                told = {"length": length, "chunk": chunk}
                found = ask_child("benchmarks.fbam.memory_child", told, environment=environment)
                peaks.setdefault(f"{side}_{length}_mb", []).append(found["bytes"] / 1e6)
    values = {name: median(found) for name, found in peaks.items()}
    values |= {f"{name}_most": max(found) for name, found in peaks.items()}
    values["memory_4096_vs_256"] = values["streamed_4096_mb"] / values["streamed_256_mb"]
    values["memory_keeping_4096_vs_256"] = values["keeping_4096_mb"] / values["keeping_256_mb"]
    values["full_memory_1024_vs_256"] = values["full_1024_mb"] / values["full_256_mb"]
    return values


def measure_time(quick: bool, progress: Progress) -> dict[str, float]:
    """CPU time of a gradient per frame; medians over fresh processes."""
    progress.stage("gradient: time")
    times: dict[str, list[float]] = {}
    for repeat in range(1 if quick else REPEATS):
        progress.detail(f"repeat {repeat + 1}")
        for name, seconds in ask_child("benchmarks.fbam.time_child", TIME_LENGTHS).items():
            times.setdefault(name, []).append(seconds)
    spent = {name: median(seconds) for name, seconds in times.items()}
    values = {f"ms_per_frame_{TIME_NAMES[name]}": 1000 * seconds for name, seconds in spent.items()}
    values["time_streamed_vs_full"] = spent["streamed"] / spent["full"]
    values["time_4096_vs_256"] = spent["long"] / spent["short"]
    return values


def gradient_error(dtype: torch.dtype) -> float:
    """The largest relative L2 error of any parameter's gradient, over all chunk sizes, against plain autograd."""
    model, stream = build_model(MODEL, seed=0).to(dtype), PatternStream(ERROR_LENGTH)
    expected = autograd_gradients(model, stream)
    errors = []
    for chunk in CHUNKS:
        streamed_gradient(model, stream, chunk)
        errors.append(largest_error(taken_gradients(model), expected))
    assert all(map(math.isfinite, errors))
    return max(errors)
