"""Rows for logging sinks, made of metrics entries: one per training step and one per evaluated version.

A row is known by its group and number, so a sink that has it never gets it twice. What the workers and validators wrote
about a step becomes part of that step's row: the number of curves does not grow with the swarm.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from shoal.telemetry.compute import ComputeLedger
from shoal.telemetry.metrics import Entry, number
from shoal.watch.history import HIDDEN_ROLES

Group = Literal["train", "eval", "suite", "latency"]
GROUPS: tuple[Group, ...] = ("train", "eval", "suite", "latency")
# Not curves: what identifies an entry rather than measures something.
NOT_VALUES = {"time", "event", "step", "version", "root", "node"}
NOT_IN_NAMES = re.compile(r"[^\w.@+-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """Values that belong to one training step (`train`) or one policy version (the other groups)."""

    group: Group
    number: int
    time: float
    values: dict[str, float] = field(compare=False)
    """By name, as in `train/reward`; finite."""


@dataclass(slots=True)
class _Share:
    """What one kind of role contributed to a step."""

    files: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, entry: Entry, keys: Iterable[str]) -> None:
        self.files += 1
        for key in keys:
            self.sums[key] = self.sums.get(key, 0.0) + (number(entry, key) or 0.0)


SUMMED = ("tokens", "samples", "scorer_errors")
AVERAGED = ("tokens_per_s", "wait_share")


class Rows:
    """Turns entries into rows as they come; of a step that was made again, the last entry at hand counts."""

    def __init__(self) -> None:
        self._workers: dict[int, _Share] = {}
        self._verdicts: dict[int, _Share] = {}
        self._compute = ComputeLedger()

    def take(self, entries: Iterable[tuple[str, Entry]]) -> list[Row]:
        """The rows of entries, each with its role, in the order in which they were written."""
        made: dict[tuple[Group, int], Row] = {}
        for role, entry in entries:
            if role in HIDDEN_ROLES:
                continue
            self._compute.take(entry)
            match entry:
                case {"event": "submission", "step": int(step)}:
                    self._workers.setdefault(step, _Share()).add(entry, (*SUMMED, *AVERAGED))
                case {"event": "verdict", "step": int(step)}:
                    said = {**entry, "accepted": int(entry.get("accept") is True)}
                    self._verdicts.setdefault(step, _Share()).add(said, ("accepted", "cpu_s"))
                case {"event": "step", "step": int(step)}:
                    made.pop(("train", step), None)
                    made["train", step] = _row("train", step, entry, self._around(step))
                case {"event": ("eval" | "suite" | "latency") as group, "version": int(version)}:
                    made.pop((group, version), None)
                    made[group, version] = _row(group, version, entry, {})
        return [row for row in made.values() if row.values]

    def _around(self, step: int) -> dict[str, float]:
        """What workers and validators had written about a step when the trainer was done with it."""
        found: dict[str, float] = {}
        if work := self._workers.get(step):
            found |= {"workers/files": work.files} | {f"workers/{key}": work.sums[key] for key in SUMMED}
            found |= {f"workers/{key}": work.sums[key] / work.files for key in AVERAGED}
        if judged := self._verdicts.get(step):
            accepted = judged.sums["accepted"]
            found |= {"validators/accepted": accepted, "validators/refused": judged.files - accepted}
            found["validators/cpu_s"] = judged.sums["cpu_s"]
        if done := self._compute.steps.get(step):
            flops = {"generate_flops": done.generate, "validate_flops": done.validate}
            sent = {"broadcast_bytes": done.broadcast, "uploaded_bytes": done.uploaded}
            found |= {f"compute/{name}": value for name, value in (flops | sent).items() if value}
        return found


def _row(group: Group, at: int, entry: Entry, more: dict[str, float]) -> Row:
    values = {f"{group}/{name}": value for name, value in numbers_of(entry)}
    return Row(group, at, number(entry, "time") or 0.0, values | more)


def numbers_of(entry: Entry, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every finite number of an entry by name; tables within it become paths. Lists and text are left out."""
    for key, value in entry.items():
        if not prefix and key in NOT_VALUES:
            continue
        name = prefix + (NOT_IN_NAMES.sub("_", str(key)) or "_")
        if isinstance(value, dict):
            yield from numbers_of(value, f"{name}/")
        elif (found := number(entry, key)) is not None:
            yield name, found
