"""vLLM with a version of the benchmark, in a cache that is too small for it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.config import RunConfig
from shoal.generate.vllm.engine import VllmEngine
from shoal.generate.vllm.start import VllmSettings
from shoal.models.load import Policy, outline
from shoal.models.weights import write_weights

SMALL_CACHE_GB = 0.03
CHUNK_OF_PREFILL = 64
# Of the cache, in tokens, and the smallest that vLLM has on a CPU. One of 128, as by default, holds a whole answer: it
# never asks for another and is never preempted.
BLOCK = 32


def written(folder: Path, policy: Policy, weights: dict[str, Tensor]) -> Path:
    """A version's directory."""
    folder.mkdir()
    policy.model.config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    write_weights(folder, weights)
    return folder


@contextmanager
def started(folder: Path, config: RunConfig, policy: Policy | None = None, **changes: Any) -> Iterator[VllmEngine]:
    """vLLM with a version, in a cache that is too small unless told otherwise."""
    settings = VllmSettings(
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        held="float32",
        dtype="float32",
        cuda=False,
        threads=config.workers.threads,
        kv_cache_gb=SMALL_CACHE_GB,
        more={"max_num_batched_tokens": CHUNK_OF_PREFILL, "block_size": BLOCK},
    )
    engine = VllmEngine(
        folder,
        policy or outline(folder),
        replace(settings, **changes),
        origin="version 1",
        reader=lambda _: {},
        say=lambda _: None,
    )
    with closing(engine):
        yield engine
