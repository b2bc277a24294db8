"""Merging an adapter into its base, defined to the bit: every machine gets the same weights, and can say so by a hash.

    S[o, i]  = B[o, 0] * A[0, i] + B[o, 1] * A[1, i] + ...      in float64, added from left to right
    W'[o, i] = rounded to the format of W (float32(W[o, i]) + float32(scale * S[o, i]))       the sum in float32

Nothing in it depends on a BLAS library, on threads or on how a matrix is cut (`merge_kernels`). The hash of a model's
weights is BLAKE3 over one line per tensor, sorted by name: name, format, shape and BLAKE3 of its bytes.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from shoal.devices import CPU, to_numpy
from shoal.errors import ModelError
from shoal.models.adapter_files import WEIGHT, Adapter, Pair
from shoal.models.weights import MappedWeights

DOMAIN = "shoal weights 1\n"
# Fewer values than this are not worth another thread.
MIN_VALUES = 1 << 18


@dataclass(frozen=True, slots=True)
class Base:
    """The weights that adapters of a run are merged into: version 0, in the run's number format."""

    root: str
    """Root hash of the version."""
    weights: Mapping[str, Tensor]
    hashes: dict[str, str] = field(default_factory=dict)
    """Of tensors that some adapter left alone; filled as they are needed."""

    def hash_of(self, name: str) -> str:
        if name not in self.hashes:
            self.hashes[name] = _hash(self.weights[name])
        return self.hashes[name]


class MergedWeights(Mapping[str, Tensor]):
    """The weights of a base with an adapter; a tensor is merged when it is asked for, so that none is held twice."""

    def __init__(self, base: Base, adapter: Adapter, origin: str) -> None:
        """A ModelError if the adapter does not fit: nothing is merged that was not meant for it."""
        self._base, self._adapter = base, adapter
        for name, pair in adapter.pairs.items():
            weight = base.weights.get(f"{name}{WEIGHT}")
            if weight is None or weight.ndim != 2:
                raise ModelError(f"{origin}: has an adapter of {name}, which is not a linear layer of the base model")
            if (pair.b_or.shape[0], pair.a_ri.shape[1]) != tuple(weight.shape):
                made = f"{pair.b_or.shape[0]} x {pair.a_ri.shape[1]}"
                raise ModelError(f"{origin}: its adapter of {name} is {made}, the layer {tuple(weight.shape)}")

    def __getitem__(self, name: str) -> Tensor:
        weight, pair = self._base.weights[name], self._pair(name)
        return weight if pair is None else merge(weight, pair, self._adapter.scale)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base.weights)

    def __len__(self) -> int:
        return len(self._base.weights)

    def unmerged(self) -> Mapping[str, Tensor]:
        """The tensors of the base, which have the merged ones' shapes."""
        return self._base.weights

    def root(self) -> str:
        """The hash of all of these weights; tensor by tensor, so that it takes the memory of one."""
        lines = []
        for name in sorted(self):
            weight, touched = self._base.weights[name], self._pair(name) is not None
            value = _hash(self[name]) if touched else self._base.hash_of(name)
            lines.append(f"{name} {weight.dtype} {'x'.join(map(str, weight.shape))} {value}\n")
        return blake3((DOMAIN + "".join(lines)).encode()).hexdigest()

    def _pair(self, name: str) -> Pair | None:
        return self._adapter.pairs.get(name.removesuffix(WEIGHT)) if name.endswith(WEIGHT) else None


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shapes of weights; nothing is merged to know them."""
    held = weights.unmerged() if isinstance(weights, MergedWeights) else weights
    if isinstance(held, MappedWeights):
        return held.shapes()
    return {name: tensor.shape for name, tensor in held.items()}


def merge(weight_oi: Tensor, pair: Pair, scale: float, threads: int | None = None) -> Tensor:
    """The merged matrix, in the format of `weight_oi`; the same bits whatever the number of threads."""
    from shoal.models.merge_kernels import add_bfloat16, add_float32

    a_ri, b_or = (to_numpy(matrix.contiguous()) for matrix in (pair.a_ri, pair.b_or))
    given = weight_oi.detach().to(CPU).contiguous()
    merged = torch.empty_like(given)
    add, seen = (add_bfloat16, torch.uint16) if given.dtype == torch.bfloat16 else (add_float32, torch.float32)
    rows = given.shape[0]
    parts = max(1, min(threads or torch.get_num_threads(), rows, given.numel() // MIN_VALUES))
    edges = [rows * part // parts for part in range(parts + 1)]
    inputs = to_numpy(given.view(seen)), b_or, a_ri.astype(np.float64), scale

    def add_rows(part: int) -> None:
        add(to_numpy(merged.view(seen)), *inputs, edges[part], edges[part + 1])

    if parts == 1:
        add_rows(0)
    else:
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(add_rows, range(parts)))
    return merged


def _hash(tensor: Tensor) -> str:
    return blake3(to_numpy(tensor.contiguous().reshape(-1).view(torch.uint8)).data).hexdigest()
