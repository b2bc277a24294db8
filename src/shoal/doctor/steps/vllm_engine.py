"""What the steps with vLLM share: an engine of one model runner, on the device that is there."""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from shoal.doctor.steps.context import Context, StepSkipped
from shoal.generate.engine import Completion, Request
from shoal.generate.vllm.engine import VllmEngine
from shoal.generate.vllm.start import VllmSettings
from shoal.models.load import outline
from shoal.models.weights import read_weights, write_weights

KV_CACHE_GB = 1.0


@contextmanager
def vllm_engine(
    context: Context, folder: Path, *, runner: int | None = None, dtype: str = "float32", plain: bool = False
) -> Iterator[VllmEngine]:
    """vLLM as a worker starts it, with a version of the number format that it computes in; on a GPU with CUDA graphs.
    `runner` is 1 or 2, None: vLLM's choice; `plain` is vLLM without our noise and proofs."""
    if importlib.util.find_spec("vllm") is None:
        raise StepSkipped("vLLM is not installed")
    on_cpu = context.device.type == "cpu"
    if runner is not None:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(runner - 1)
    if dtype != "float32":
        folder = in_format(folder, dtype, context.scratch / dtype)
    config = context.config
    settings = VllmSettings(
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        held=dtype,
        dtype=dtype,
        cuda=not on_cpu,
        kv_cache_gb=KV_CACHE_GB if on_cpu else None,
        proofs=not plain,
        noise=not plain,
    )
    engine = VllmEngine(folder, outline(folder), settings, origin="version 0", reader=lambda _: {}, say=lambda _: None)
    try:
        yield engine
    finally:
        engine.close()


def written(to: Path, model: Path, weights: Mapping[str, Tensor]) -> Path:
    """A version's directory with these weights, and all else as it is in a model's."""
    to.mkdir()
    for file in model.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and "index" not in file.name:
            (to / file.name).write_bytes(file.read_bytes())
    write_weights(to, weights)
    return to


def in_format(model: Path, dtype: str, to: Path) -> Path:
    """A model as a version of this number format: vLLM rounds what it reads, but for the head, which is float32."""
    return to if to.exists() else written(to, model, read_weights(model, dtype))


def answers_of(engine: VllmEngine, requests: Sequence[Request]) -> Callable[[float], list[Completion]]:
    """What it answers at a temperature."""

    def at(temperature: float) -> list[Completion]:
        engine.temperature = temperature
        return list(engine.generate(requests))

    return at
