"""`shoal bench broadcast`: a file from an origin through a relay to clients, against what you would otherwise use.

The peers are the package `shardcast` 0.3.2, in an environment of its own and with its polling lowered to a second, and
nginx before nginx with curl and b3sum. Sides take turns within one run, the order changes from round to round, and the
best round of each counts. The data are random, so that nothing compresses, and on a memory disk where there is room.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from shoal.bench.casts import Nginx, Shardcast, Side
from shoal.bench.progress import Progress
from shoal.bench.result import BenchResult, Figure
from shoal.bench.usage import cpu_below
from shoal.errors import BenchError
from shoal.files import cache_dir

MEMORY_DISK = Path("/dev/shm")
# The most room a send takes, in sizes of the data: the source, and two copies a node while shardcast joins its shards.
COPIES_A_NODE = 2
SHARE_OF_ROOM = 0.7


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent to 2 and to 8 clients, and how often."""

    rounds: int
    bytes_2: int
    bytes_8: int


FULL = Size(rounds=3, bytes_2=1_000_000_000, bytes_8=500_000_000)
QUICK = Size(rounds=1, bytes_2=20_000_000, bytes_8=10_000_000)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one send took: seconds on the clock, and of all processes' CPU."""

    seconds: float
    cpu: float


def best(costs: Sequence[Cost]) -> Cost:
    return Cost(min(c.seconds for c in costs), min(c.cpu for c in costs))


def in_turns(
    sides: Sequence[Side], folder: Path, data: Path, clients: int, rounds: int, progress: Progress
) -> dict[str, Cost]:
    """The best of each side's sends; a side that begins one round ends the next."""
    costs: dict[str, list[Cost]] = {side.name: [] for side in sides}
    for i in range(rounds):
        for side in sides if i % 2 == 0 else sides[::-1]:
            progress.detail(f"{side.name}, round {i + 1} of {rounds}")
            costs[side.name].append(send_once(side, folder, data, clients, check=i == 0))
    return {name: best(found) for name, found in costs.items()}


def send_once(side: Side, folder: Path, data: Path, clients: int, *, check: bool) -> Cost:
    """One send of `data` through a swarm of its own, which is gone afterwards; `check` hashes what came, unclocked."""
    scratch = Path(tempfile.mkdtemp(prefix=f"{side.name}-", dir=folder))
    try:
        with side.swarm(scratch, clients) as send:
            cpu, began = cpu_below(), time.perf_counter()
            files = send(data)
            cost = Cost(time.perf_counter() - began, cpu_below() - cpu)
        if len(set(files)) != clients or any(f.stat().st_size != data.stat().st_size for f in files):
            raise BenchError(f"{side.name}: {len(set(files))} of {clients} clients have the whole file")
        if check and len({_hash(file) for file in (data, *files)}) != 1:
            raise BenchError(f"{side.name}: a client has other bytes than were sent")
        return cost
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _hash(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
