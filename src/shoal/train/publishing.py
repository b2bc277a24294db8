"""Weights of a sharded policy as files: gathered and written tensor by tensor, so that no copy of the model is made."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.devices import CPU
from shoal.models.weights import FILE_BYTES, WeightFile, piece_size_of, plan_files, specs_of, write_file, write_index
from shoal.train.distributed import World


@torch.no_grad()
def write_version(
    folder: Path, weights: Mapping[str, Tensor], dtype: torch.dtype, world: World, file_bytes: int = FILE_BYTES
) -> None:
    """Writes the weight files of a version, in the format `dtype`, each rank its own. Every rank calls it.

    Files are written in rounds, one per rank; which files there are does not depend on the number of ranks.
    """
    files = plan_files(specs_of(weights, dtype), file_bytes)
    for begin in range(0, len(files), world.size):
        round_ = files[begin : begin + world.size]
        tensors = _gathered_in_turn(round_, weights, dtype, world)
        if world.rank < len(round_):
            write_file(folder, round_[world.rank], tensors, piece_size_of(files))
        for _ in tensors:  # the others' files may have more tensors, or this rank has no file at all
            pass
    if world.all(True) and world.is_first:  # when every rank has come here, all files are written
        write_index(folder, files)


def _gathered_in_turn(
    files: Sequence[WeightFile], weights: Mapping[str, Tensor], dtype: torch.dtype, world: World
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of this rank's file, whole. All ranks gather all tensors in one order, and keep one at a time."""
    for names in zip_longest(*(file.tensors for file in files)):
        own = None
        for rank, name in enumerate(names):
            if name is None:
                continue
            whole = _whole(weights[name])
            if rank == world.rank:
                own = name, whole.to(dtype) if whole.is_floating_point() else whole
        if own is not None:
            yield own


@torch.no_grad()
def gathered(weights: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """All weights whole, in rank 0's host memory alone. Every rank calls it."""
    kept = {}
    for name, tensor in weights.items():
        whole = _whole(tensor)
        if world.is_first:
            kept[name] = whole.to(CPU)
    return kept


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of which ranks hold shares, gathered; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
