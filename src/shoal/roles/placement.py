"""Placement: which CUDA devices each role of `shoal run` sees, on a machine that has several.

The trainer's ranks get the first devices, the other roles take turns on those that remain: workers first, each as many
as its model is split over. A role sees its own devices and no other, so it computes as if it were alone.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice

from shoal.config import MAY_BE_CUDA, DeviceTable, RunConfig
from shoal.rundir import validator_names

VISIBLE = "CUDA_VISIBLE_DEVICES"
Placement = Mapping[str, Sequence[str]]
"""Names of devices by role; a role that is missing sees all of them."""


def visible_devices() -> list[str]:
    """The CUDA devices that this process sees, by the names that they have in its environment."""
    from shoal.devices import this_machine

    count = this_machine().cuda
    names = os.environ.get(VISIBLE)
    return names.split(",")[:count] if names else [str(number) for number in range(count)]


def place(config: RunConfig, devices: Sequence[str]) -> Placement:
    """A device for each role that may use one; none where there are not several."""
    if len(devices) < 2:
        return {}
    wanting = [(name, count) for name, table, count in _roles(config) if config.device_of(table) in MAY_BE_CUDA]
    found: dict[str, Sequence[str]] = {}
    rest = devices
    if wanting and wanting[0][0] == "trainer":
        _, ranks = wanting.pop(0)
        found["trainer"] = devices[:ranks]
        rest = devices[ranks:] or devices
    turns = cycle(rest)
    for name, count in wanting:
        # A model that is split over more than remain shares devices with the trainer.
        found[name] = list(islice(turns, count)) if count <= len(rest) else devices[:count]
    return found


def environment_of(placement: Placement, role: str) -> dict[str, str]:
    """What a role's process is told of its devices."""
    return {VISIBLE: ",".join(placement[role])} if role in placement else {}


def in_words(placement: Placement) -> str:
    """The placement on a line, as in `trainer 0, 1; worker-0 2`."""
    return "; ".join(f"{role} {', '.join(devices)}" for role, devices in placement.items())


def _roles(config: RunConfig) -> Iterator[tuple[str, DeviceTable, int]]:
    """Roles that compute, with the table that says on what, and how many devices each takes."""
    yield "trainer", "train", config.train.ranks
    for number in range(config.workers.count):
        yield f"worker-{number}", "workers", config.workers.tensor_parallel
    for name in validator_names(config):
        yield name, "audit", 1
    yield "evaluator", "eval", 1
    for number in range(len(config.cheaters)):
        yield f"cheater-{number}", "workers", 1
    if config.ledger.plants:
        yield "planter", "workers", 1
