"""Exact streaming gradient against automatic differentiation of the whole sequence: error, memory and time."""

import math
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.common.progress import Progress
from benchmarks.fbam.jobs import ask_child
from shoal.fbam import ActionModel, FrameShape, ModelConfig, Stream, build_model, streamed_gradient
from shoal.fbam.frames import CHANNELS

SHAPE = FrameShape(rows=8, columns=16)
MODEL = ModelConfig(shape=SHAPE, actions=64, head_width=32, conv_stages=2, head_blocks=1, head_heads=4, width=64)
BATCH = 2
CHUNK = 64
CHUNKS = (1, 7, 64, 1000)
ERROR_LENGTH = 150
REPEATS = 3


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


def measure_streaming(quick: bool, progress: Progress) -> dict[str, float]:
    """Figures of the gradient, of its memory and of its time."""
    progress.stage("gradient: streamed against whole")
    values = {
        "gradient_error_float64": gradient_error(torch.float64),
        "gradient_error_float32": gradient_error(torch.float32),
    }
    progress.stage("gradient: memory")
    for chunk, lengths in ((CHUNK, (256, 4096)), (None, (256, 1024))):
        for length in lengths:
            name = f"{'streamed' if chunk else 'full'}_{length}_mb"
            values[name] = ask_child("benchmarks.fbam.memory_child", {"length": length, "chunk": chunk})["bytes"] / 1e6
    values["memory_4096_vs_256"] = values["streamed_4096_mb"] / values["streamed_256_mb"]
    values["full_memory_1024_vs_256"] = values["full_1024_mb"] / values["full_256_mb"]
    progress.stage("gradient: time")
    times: dict[str, list[float]] = {}
    for repeat in range(1 if quick else REPEATS):
        progress.detail(f"repeat {repeat + 1}")
        for name, seconds in ask_child("benchmarks.fbam.time_child", {}).items():
            times.setdefault(name, []).append(seconds)
    spent = {name: median(seconds) for name, seconds in times.items()}
    values |= {f"ms_per_frame_{name}": 1000 * seconds for name, seconds in spent.items()}
    values["time_streamed_vs_full"] = spent["streamed_512"] / spent["full_512"]
    values["time_4096_vs_256"] = spent["streamed_4096"] / spent["streamed_256"]
    return values


def gradient_error(dtype: torch.dtype) -> float:
    """The largest relative L2 error of any parameter's gradient, over all chunk sizes."""
    model, stream = build_model(MODEL, seed=0).to(dtype), PatternStream(ERROR_LENGTH)
    expected = _gradients(model, stream, ERROR_LENGTH)
    worst = 0.0
    for chunk in CHUNKS:
        for name, found in _gradients(model, stream, chunk).items():
            worst = max(worst, float((found - expected[name]).norm() / expected[name].norm()))
    assert math.isfinite(worst)
    return worst


def _gradients(model: ActionModel, stream: Stream, chunk: int) -> dict[str, torch.Tensor]:
    model.zero_grad()
    streamed_gradient(model, stream, chunk)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
