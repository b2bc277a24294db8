"""The ranks of one trainer: who is who, and what they tell each other. Only tensors travel between them, never pickles.

Under torchrun every process is a rank; otherwise there is a world of one, in which every exchange is a return. Rank 0
alone knows the network, the run's files and the rollouts; the others do what it orders.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shoal.config import RunConfig
from shoal.devices import CPU, collectives
from shoal.errors import ConfigError
from shoal.process import RENDEZVOUS

# Rank 0 waits for rollouts as long as it takes, and the others for rank 0. A rank that is gone is noticed at once: its
# connections close, and torchrun or the supervisor ends the others.
WAIT = timedelta(days=30)
# All ranks of a job start together; the slowest has to import and to join within this time.
JOIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class World:
    """One rank's view of all of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    control: Any = None
    """Gloo group for orders and token arrays."""
    background: Any = None
    """Gloo group of the threads that write checkpoints, so that they do not get between the others' exchanges."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mesh(self, device: str | None = None) -> DeviceMesh:
        """All ranks in a row, for tensors that are sharded over them; in host memory for `device` "cpu"."""
        if not dist.is_initialized():
            dist.init_process_group(collectives(self.device), store=dist.HashStore(), rank=0, world_size=1)
        return init_device_mesh(device or self.device.type, (self.size,))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks; NaN on one is NaN on all."""
        return self._reduced(values, "SUM")

    def max(self, values: Sequence[float]) -> list[float]:
        return self._reduced(values, "MAX")

    def all(self, fine: bool) -> bool:
        """Whether it is so on every rank."""
        return self.sum([0.0 if fine else 1.0])[0] == 0

    def _reduced(self, values: Sequence[float], how: str) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, how), group=self.control)
        found: list[float] = tensor.tolist()
        return found

    def share(self, tensor: Tensor | None, source: int = 0, *, background: bool = False) -> Tensor:
        """Gives every rank the one-dimensional int64, float32 or uint8 tensor that `source` has."""
        if self.size == 1:
            assert tensor is not None
            return tensor
        group = self.background if background else self.control
        kinds = (torch.int64, torch.float32, torch.uint8)
        head = torch.zeros(2, dtype=torch.int64)
        if self.rank == source:
            assert tensor is not None
            head = torch.tensor([tensor.numel(), kinds.index(tensor.dtype)])
        dist.broadcast(head, source, group=group)
        if self.rank != source or tensor is None:
            tensor = torch.empty(int(head[0]), dtype=kinds[int(head[1])])
        dist.broadcast(tensor, source, group=group)
        return tensor

    def share_text(self, text: str | None, source: int = 0, *, background: bool = False) -> str:
        """Gives every rank the text that `source` has."""
        data = None if text is None else torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)
        return str(json.loads(bytes(self.share(data, source, background=background).tolist())))

    def texts(self, text: str, *, background: bool = False) -> list[str]:
        """What every rank says, in their order."""
        return [
            self.share_text(text if self.rank == source else None, source, background=background)
            for source in range(self.size)
        ]

    def deal(self, tensors: Sequence[Tensor] | None) -> Tensor:
        """Rank 0 gives each rank its own one-dimensional tensor; all have one type, int64 or float32."""
        if self.size == 1:
            assert tensors is not None
            return tensors[0]
        if tensors is not None:
            dtype = tensors[0].dtype
            for rank, tensor in enumerate(tensors[1:], 1):
                head = torch.tensor([tensor.numel(), int(dtype == torch.float32)])
                dist.send(head, rank, group=self.control)
                dist.send(tensor.contiguous(), rank, group=self.control)
            return tensors[0]
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, 0, group=self.control)
        tensor = torch.empty(int(head[0]), dtype=torch.float32 if head[1] else torch.int64)
        dist.recv(tensor, 0, group=self.control)
        return tensor


ALONE = World()


def is_launched() -> bool:
    """Whether torchrun, or `shoal run` in its place, started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """The world of this process, from the environment that torchrun or a `RankGroup` sets."""
    if not is_launched():
        yield World(device=device)
        return
    store = os.environ.get(RENDEZVOUS)
    dist.init_process_group(
        collectives(device),
        init_method=f"file://{store}" if store else "env://",
        timeout=JOIN,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    try:
        control, background = (dist.new_group(backend="gloo", timeout=WAIT) for _ in range(2))
        yield World(dist.get_rank(), dist.get_world_size(), device, control, background)
    finally:
        dist.destroy_process_group()


def check_same_config(world: World, config: RunConfig) -> None:
    """Stops every rank with the first field that two of them have different values for."""
    own = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    hashes = world.texts(hashlib.sha256(own.encode()).hexdigest())
    other = next((rank for rank, found in enumerate(hashes) if found != hashes[0]), None)
    if other is None:
        return
    first, second = (json.loads(world.share_text(own if world.rank == rank else None, rank)) for rank in (0, other))
    field, one, two = next(_differences(first, second))
    raise ConfigError(
        f"trainer: rank {other} has another config than rank 0: {field} = {two} there and {one} on rank 0; give all "
        "ranks the same run and the same --set"
    )


def _differences(one: Any, two: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Every field whose value differs, as (name, one value, the other)."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for name in sorted(one.keys() | two.keys()):
            yield from _differences(one.get(name), two.get(name), f"{path}.{name}" if path else name)
    elif one != two:
        yield path, json.dumps(one), json.dumps(two)
