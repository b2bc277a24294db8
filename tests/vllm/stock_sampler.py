"""The installed vLLM's own sampling kernel, run by Triton's interpreter on the CPU; prints its results as JSON.

    python -m tests.vllm.stock_sampler

vLLM hides Triton where there is no GPU, so the file of its kernels is executed with the real Triton in the place of its
import. Nothing of the file is changed. It takes a process of its own: the interpreter is chosen before Triton is
imported.
"""

import importlib.util
import json
import os
import sys
import types
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

SEEDS = (0, 1, 123456789012345, 2**63 - 1, 2**40 + 7)
POSITIONS = (0, 7, 1023, 32767, 5)
VOCAB = 1300
TEMPERATURES = (1.0, 0.6)


def kernels() -> Any:
    """The module of vLLM's sampler."""
    standing_in = types.ModuleType("vllm.triton_utils")
    standing_in.__dict__.update(tl=tl, triton=triton)
    sys.modules["vllm.triton_utils"] = standing_in
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations
    path = f"{found.submodule_search_locations[0]}/v1/worker/gpu/sample/gumbel.py"
    spec = importlib.util.spec_from_file_location("stock_gumbel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STOCK = kernels()


@triton.jit  # type: ignore[untyped-decorator]
def _noise_kernel(hashes_ptr, noise_ptr, seeds_ptr, positions_ptr, vocab, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, block = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = block < vocab
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    hashes = STOCK.murmur3_hash32(seed, position, block)
    noise = -tl.log(-STOCK._log1p_neg_stable(STOCK.murmur3_uniform32(seed, position, block)))
    tl.store(hashes_ptr + row * vocab + block, hashes.to(tl.int64), mask=mask)
    tl.store(noise_ptr + row * vocab + block, noise, mask=mask)


def noise() -> tuple[torch.Tensor, torch.Tensor]:
    """Hashes and float32 noise of every seed at its position."""
    hashes = torch.empty(len(SEEDS), VOCAB, dtype=torch.int64)
    values = torch.empty(len(SEEDS), VOCAB)
    grid = (len(SEEDS), triton.cdiv(VOCAB, 1024))
    _noise_kernel[grid](hashes, values, torch.tensor(SEEDS), torch.tensor(POSITIONS), VOCAB, BLOCK=1024)
    return hashes, values


def tokens(logits_BV: torch.Tensor, temperature: float) -> list[int]:
    """What the sampler draws from logits, with its own steps in its own order: temperature in place, then noise."""
    rows, at = torch.arange(len(logits_BV)), torch.full((len(logits_BV),), temperature)
    scaled_BV = logits_BV.clone()
    if temperature != 1.0:
        STOCK.apply_temperature(scaled_BV, rows, at)
    seeds, positions = torch.tensor(SEEDS), torch.tensor(POSITIONS)
    drawn = STOCK.gumbel_sample(
        scaled_BV, rows, at, seeds, positions, apply_temperature=False, is_drafting=False, use_fp64=False
    )
    return list(drawn.tolist())


def logits(draw: int) -> torch.Tensor:
    return torch.randn(len(SEEDS), VOCAB, generator=torch.Generator().manual_seed(draw)) * 2


if __name__ == "__main__":
    hashes, values = noise()
    drawn = {str(t): [tokens(logits(draw), t) for draw in range(8)] for t in TEMPERATURES}
    json.dump({"hashes": hashes.tolist(), "noise": values.tolist(), "tokens": drawn}, sys.stdout)
