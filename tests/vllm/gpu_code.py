"""Compiles kernels for GPUs, which takes none, and prints what was found as JSON.

    python -m tests.vllm.gpu_code

A process of its own: Triton reads its settings when it is imported, and must not be in its interpreter.
"""

import json
import os
import sys
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from shoal.generate.vllm import noise_kernel

# Ampere, Hopper and Blackwell.
CAPABILITIES = (80, 90, 100)
NUMBERS = ("seeds", "samples", "positions")
TYPES = {
    **dict.fromkeys(NUMBERS, "*i64"),
    **dict.fromkeys(("logits", "temperatures", "chosen_out", "peaks_out", "sums_out"), "*fp32"),
    **dict.fromkeys(("tokens_out", "out"), "*i32"),
    "scores_out": "*fp64",
}


@triton.jit
def _product(left, right, out):  # type: ignore[no-untyped-def]
    """As vLLM's attention multiplies (`triton_unified_attention.py`): nothing is said of precision."""
    row, column = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    at = row * 32 + column
    tl.store(out + at, tl.dot(tl.load(left + at), tl.load(right + at)))


def compiled(kernel: Any, capability: int, constants: dict[str, object], types: dict[str, str]) -> str:
    """A kernel's assembly for NVIDIA's GPUs of a compute capability; whole numbers are 32 bits wide."""
    names = list(kernel.arg_names)
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(
        fn=kernel, signature=signature, constexprs={(names.index(name),): value for name, value in constants.items()}
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
    return str(made.asm["ptx"])


def main() -> None:
    found = []
    for capability in CAPABILITIES:
        for kernel in (noise_kernel._bits_kernel, noise_kernel._draw_kernel):
            compiled(kernel, capability, {"blocks": noise_kernel.BLOCKS}, TYPES)
        found.append("tf32" in compiled(_product, capability, {}, dict.fromkeys(("left", "right", "out"), "*fp32")))
    sys.stdout.write(json.dumps({"tf32": found}))


if __name__ == "__main__":
    main()
