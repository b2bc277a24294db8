"""Which matrices of a version's files a linear layer of vLLM computes with, and whether it does, bit for bit.

A layer whose input is 1 at one place and 0 elsewhere gives a column of its matrix exactly, out of whatever packed copy
it really uses; one whose input is 0 gives its bias. vLLM merges matrices that read the same input into one layer, and
under tensor parallelism a rank has some rows of each, or some columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.devices import CPU

PROBES = 16


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` equal consecutive parts, each of so many rows or columns."""

    size: int
    number: int = 0
    count: int = 1

    @property
    def first(self) -> int:
        return self.number * self.size

    @property
    def whole(self) -> int:
        return self.count * self.size


@dataclass(frozen=True, slots=True)
class Part:
    """What a layer has of one stored matrix: under which name it is stored, and which of its rows are this rank's."""

    stored: str
    rows: Shard

    @property
    def matrix(self) -> str:
        return f"{self.stored}.weight"

    @property
    def bias(self) -> str:
        return f"{self.stored}.bias"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a layer of a rank computes: its parts, one after the other in its output, and the columns of all of them."""

    parts: Sequence[Part]
    columns: Shard


def plain_layout(name: str, layer: Any) -> Layout:
    """A layer that each rank has as a whole."""
    return Layout([Part(name, Shard(layer.output_size))], Shard(layer.input_size))


def row_parallel_layout(name: str, layer: Any) -> Layout:
    """vLLM's RowParallelLinear, whose matrix is split by its inputs: a rank has columns of the stored one."""
    columns = Shard(layer.input_size_per_partition, layer.tp_rank, layer.tp_size)
    return Layout([Part(name, Shard(layer.output_size))], columns)


def column_parallel_layout(names: Sequence[str], layer: Any, replicas: Sequence[int] = ()) -> Layout | None:
    """vLLM's ColumnParallelLinear and the merged ones; None if the names are not those of its parts.

    `replicas` says of each part how many ranks have the same rows of it: one, unless there are fewer heads than ranks.
    """
    sizes = layer.output_partition_sizes
    if len(names) != len(sizes):
        return None
    parts = [
        Part(name, Shard(size, layer.tp_rank // same, layer.tp_size // same))
        for name, size, same in zip(names, sizes, replicas or [1] * len(sizes), strict=True)
    ]
    return Layout(parts, Shard(layer.input_size))


def qkv_layout(names: Sequence[str], layer: Any) -> Layout | None:
    """vLLM's QKVParallelLinear, in which several ranks may have the same heads of k and v."""
    return column_parallel_layout(names, layer, (1, layer.num_kv_head_replicas, layer.num_kv_head_replicas))


def compare(layer: Any, layout: Layout, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, bool]]:
    """Each stored matrix of the layer with its bias, and whether the layer computes with it.

    A matrix that is not stored, or not in the shape that the layer has it in, is left out.
    """
    if not any(_fits(part, layout, weights) for part in layout.parts):
        return  # the layer may be none that takes rows, such as a convolution
    places = spread(layout.columns.size)
    columns = [layout.columns.first + place for place in places]
    units_PD = unit_rows(places, layout.columns.size, layer.params_dtype, _device_of(layer))
    own_PO = layer.quant_method.apply(layer, units_PD, None)
    own_1O = layer.quant_method.apply(layer, torch.zeros_like(units_PD[:1]), layer.bias)
    output = 0
    for part in layout.parts:
        here = slice(output, output + part.rows.size)
        there = slice(part.rows.first, part.rows.first + part.rows.size)
        output += part.rows.size
        if not _fits(part, layout, weights):
            continue
        yield part.matrix, same(own_PO[:, here], weights[part.matrix][there][:, columns].T)
        if part.bias in weights:
            yield part.bias, same(own_1O[0, here], weights[part.bias][there])


def _fits(part: Part, layout: Layout, weights: Mapping[str, Tensor]) -> bool:
    return part.matrix in weights and weights[part.matrix].shape == (part.rows.whole, layout.columns.whole)


def same(computed: Tensor, file: Tensor) -> bool:
    """Whether all values are those of the file, in the number format that is computed in."""
    return bool((computed == file.to(device=computed.device, dtype=computed.dtype)).all())


def spread(count: int) -> list[int]:
    """Some places of so many, first and last among them."""
    probes = min(PROBES, count)
    return sorted({round(n * (count - 1) / max(1, probes - 1)) for n in range(probes)})


def unit_rows(places: Sequence[int], size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One row per place, which is 1 there and 0 elsewhere."""
    rows_PD = torch.zeros(len(places), size, device=device, dtype=dtype)
    rows_PD[range(len(places)), places] = 1
    return rows_PD


def _device_of(layer: Any) -> torch.device:
    held = [*layer.parameters(), *layer.buffers()]
    return held[0].device if held else CPU
