"""Input conversion: hidden states of torch or numpy as the bits of bf16.

bf16 is taken as it is and float32 is rounded to the nearest bf16, ties to even, as `tensor.to(torch.bfloat16)` does: a
worker that computes in float32 must prove the same bits as one that converts first. Everything else is refused. float16
above all: it has been rounded once already, and a second rounding would differ from that of a node that computed in
bf16.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ToplocError

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = torch.Tensor | NDArray[Any]
    States: TypeAlias = Array | Sequence[Array]

Bits: TypeAlias = NDArray[np.uint16]

ACCEPTED = "bfloat16 or float32 (torch), float32 or uint16 with the bits of bf16 (numpy)"


def as_bits(states: "States") -> Bits:
    """The states as [tokens, hidden] bits of bf16, contiguous; not copied where they already are that."""
    if isinstance(states, (list, tuple)):
        bits_TH = _stack([_array_bits(state).reshape(-1) for state in states])
    else:
        bits_TH = _array_bits(states)
        if bits_TH.ndim != 2:
            raise ToplocError(f"states have the shape {bits_TH.shape}; give [tokens, hidden]")
    if bits_TH.size == 0:
        raise ToplocError(f"states have the shape {bits_TH.shape}: there is nothing to prove")
    return np.require(bits_TH, requirements=["C", "A"])


def _stack(tokens: list[Bits]) -> Bits:
    sizes = {token.size for token in tokens}
    if len(sizes) > 1:
        raise ToplocError(f"states of one list have {sorted(sizes)} values; every token must have the same hidden size")
    return np.stack(tokens) if tokens else np.empty((0, 0), np.uint16)


def _array_bits(array: Any) -> Bits:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _tensor_bits(array, torch)
    if not isinstance(array, np.ndarray):
        raise ToplocError(f"states are of type {type(array).__name__}; give {ACCEPTED}, or a list with one per token")
    native = array.dtype.newbyteorder("=")
    if native == np.uint16:
        return array.astype(np.uint16, copy=False)
    if native == np.float32:
        return _rounded(array)
    raise ToplocError(f"states are of dtype {array.dtype}; give {ACCEPTED}")


def _tensor_bits(tensor: Any, torch: Any) -> Bits:
    if tensor.dtype not in (torch.bfloat16, torch.float32):
        raise ToplocError(f"states are of dtype {tensor.dtype}; give {ACCEPTED}")
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ToplocError(f"states are on {tensor.device} in layout {tensor.layout}; give a dense tensor with data")
    bits: Bits = tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
    return bits


def _rounded(values: NDArray[np.float32]) -> Bits:
    wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (wide >> 16) & 1
    rounded = ((wide + 0x7FFF + odd) >> 16).astype(np.uint16)
    # Rounding would carry the bits of some NaN over into another number.
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.reshape(values.shape)
