"""One engine for most tests: it takes a while to start. Its cache is too small for all that is asked of it at once,
prompts are read 64 tokens at a time, and blocks of 32 tokens are cached, where a CPU's usual 128 are longer than any
prompt here: so preemption, chunked prefill and prefix-cache hits are in every test of many requests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

SMALL_CACHE_GB = 0.0016


def settings_of(**changes: Any) -> Any:
    from shoal.generate.vllm.start import VllmSettings

    more = {
        "max_num_batched_tokens": 64,
        "block_size": 32,
        "worker_extension_cls": "tests.vllm.planted.PlantedExtension",
    }
    usual = VllmSettings(
        max_batch=32,
        max_len=256,
        temperature=1.0,
        held="float32",
        dtype="float32",
        cuda=False,
        kv_cache_gb=SMALL_CACHE_GB,
        more=more,
    )
    return replace(usual, **changes)


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Our tiny model, untrained, which talks on until the length limit: head and embedding are one matrix."""
    from tests.support.model_and_checks import model_dir

    return model_dir("long")


@pytest.fixture(scope="session")
def engine(tiny: Path) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
    from shoal.generate.vllm.engine import VllmEngine
    from shoal.models.load import outline

    said: list[str] = []
    found = VllmEngine(tiny, outline(tiny), settings_of(), origin="version 0", reader=lambda _: {}, say=said.append)
    found.said = said  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        found.close()
