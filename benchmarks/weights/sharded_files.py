"""Section `files` of the benchmark `sharding`: a version of eight files against the same weights in a single file.

*Publish* is from weights in memory to a delta package that is closed, *fetch* from packages that are here to a version
that can be read. The single file takes the passes that one file and one thread need where no hash is handed on: it is
written, hashed by its channel and by its origin, and hashed again beside its base while the delta is encoded; at a
worker the base is hashed, the new file while it is made, and then once more for the version's root. Sides take turns
within one run and the best round of each counts. Files are on a memory disk where there is room.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.weights.broadcast import MEMORY_DISK
from shoal.crypto.keys import Key
from shoal.errors import BenchError
from shoal.files import free_bytes
from shoal.models.weights import read_weights, weight_files, write_weights
from shoal.protocol.version_directory import DirectoryChannel, folder_name
from shoal.shardcast.delta import delta
from shoal.shardcast.delta.assemble import assemble
from shoal.shardcast.format.hashing import hash_pieces
from shoal.shardcast.format.manifest import FILES
from shoal.shardcast.format.records import LARGEST_PIECE
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions

BARS: dict[str, tuple[Op, float]] = {"publish": (">=", 1.8), "fetch": (">=", 1.8)}
Found = TypeVar("Found")
PARTS = 8
TENSORS = 64
CHANGED = 0.0133  # of all values, by one step: eight optimizer steps at the recipe's rate (benchmark `delta`)


@dataclass(frozen=True, slots=True)
class Size:
    values: int  # of one tensor
    rounds: int


FULL = Size(15_625_000, rounds=3)  # 2 GB
QUICK = Size(1 << 17, rounds=1)


class Side(Protocol):
    """One way to publish a version, and to make it from the version before and what was published."""

    def publish(self, number: int) -> None: ...

    def fetch(self, number: int) -> Mapping[str, Tensor]: ...


def bench_files(quick: bool, progress: Progress) -> BenchResult:
    """How many times faster eight files are published and put together than one."""
    size = QUICK if quick else FULL
    full = 2 * size.values * TENSORS
    progress.stage(f"{full / 1e9:g} GB of bf16 in {PARTS} files, and in one")
    weights = first_weights(size.values)
    delta.encode_tensor(np.zeros(1, np.uint16), np.ones(1, np.uint16))  # compiles the kernels
    best: dict[str, float] = {}
    sides = {"single": _single, "several": _several}
    for number in range(size.rounds):
        for name in sides if number % 2 else reversed(sides):
            progress.detail(f"{name}, round {number + 1} of {size.rounds}")
            with _folder(4 * full) as folder, sides[name](folder, weights) as side:
                side.publish(0)
                train(weights, 1)
                _timed(best, f"{name}_publish", lambda: side.publish(1))
                found = _timed(best, f"{name}_fetch", lambda: side.fetch(1))
                if any(not torch.equal(found[key], tensor) for key, tensor in weights.items()):
                    raise BenchError(f"bench sharding: {name} gives other weights than were published")
                train(weights, -1)
    ratios = {kind: best[f"single_{kind}"] / best[f"several_{kind}"] for kind in ("publish", "fetch")}
    values: dict[str, Figure] = {"files_bytes": full, **{f"{name}_s": seconds for name, seconds in best.items()}}
    return BenchResult("files", ratios, values, {} if quick else BARS)


def first_weights(values: int) -> dict[str, Tensor]:
    """Random weights: one tensor, turned a little further for each name."""
    one = (0.02 * torch.randn(values, generator=torch.Generator().manual_seed(0))).bfloat16()
    return {f"layers.{i:02d}.weight": one.roll(1000 * i) for i in range(TENSORS)}


def train(weights: dict[str, Tensor], steps: int) -> None:
    """Moves some values of each tensor, always the same ones, in place."""
    values = next(iter(weights.values())).numel()
    moved = torch.randperm(values, generator=torch.Generator().manual_seed(1))[: int(values * CHANGED)]
    for number, tensor in enumerate(weights.values()):
        tensor.view(torch.int16)[(moved + 31 * number) % values] += steps


class Single:
    """One file, one thread, and every hash computed where it is needed."""

    def __init__(self, folder: Path, weights: dict[str, Tensor]) -> None:
        self._folder, self._weights = folder, weights

    def publish(self, number: int) -> None:
        path = self._path(number)
        save_file(self._weights, path)
        hash_pieces(path, LARGEST_PIECE)
        if number:
            hash_pieces(path, LARGEST_PIECE)
            delta.encode(self._path(number - 1), path, self._folder / "delta")

    def fetch(self, number: int) -> Mapping[str, Tensor]:
        base, made = self._path(number - 1), self._folder / "made.safetensors"
        hash_pieces(base, LARGEST_PIECE)
        delta.apply(base, self._folder / "delta", made, base_is_verified=True)
        hash_pieces(made, LARGEST_PIECE)
        return load_file(made)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.safetensors"


class Several:
    """A run's own way: the trainer's channel, the origin's versions, and a worker's store."""

    def __init__(self, folder: Path, weights: dict[str, Tensor], publisher: Publisher) -> None:
        self._weights, self._publisher = weights, publisher
        self._folder, self._worker = folder / "weights", Store(folder / "worker")
        self._channel, self._versions = DirectoryChannel(self._folder, keep=2), Versions(publisher)

    def publish(self, number: int) -> None:
        total = sum(tensor.nbytes for tensor in self._weights.values())
        with self._channel.publish(number) as staging:
            write_weights(staging, self._weights, file_bytes=total // PARTS)
        self._versions.publish(number, self._folder / folder_name(number))

    def fetch(self, number: int) -> Mapping[str, Tensor]:
        store, worker = self._publisher.store, self._worker
        for name in store.packages():  # as links: there is one copy
            shutil.copytree(store.folder(name), worker.folder(name), copy_function=os.link)
        (entry,) = (e for e in self._publisher.entries if (e.number, e.kind) == (number, "delta"))
        files = assemble(worker, [entry], lambda name: worker.folder(name) / FILES) / FILES
        if len(weight_files(files)) != PARTS:
            raise BenchError(f"bench sharding: {files} does not have {PARTS} weight files")
        return dict(read_weights(files, "bfloat16"))


@contextmanager
def _single(folder: Path, weights: dict[str, Tensor]) -> Iterator[Side]:
    yield Single(folder, weights)


@contextmanager
def _several(folder: Path, weights: dict[str, Tensor]) -> Iterator[Side]:
    with Publisher(Store(folder / "store"), Key(b"\x11" * 32), "bench") as publisher:
        yield Several(folder, weights, publisher)


def _timed(best: dict[str, float], name: str, work: Callable[[], Found]) -> Found:
    began = time.perf_counter()
    found = work()
    best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)
    return found


@contextmanager
def _folder(needed: int) -> Iterator[Path]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    room = MEMORY_DISK.is_dir() and min(memory, free_bytes(MEMORY_DISK)) > needed
    with TemporaryDirectory(prefix="shoal-files-", dir=MEMORY_DISK if room else None) as folder:
        yield Path(folder)
