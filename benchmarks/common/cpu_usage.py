"""CPU time of processes and of those that they started, from /proc."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BenchError

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Table:
    """One reading of all processes."""

    children: dict[int, list[int]]
    used: dict[int, tuple[int, int]]
    """Clock ticks of a process itself, and of those that it started, waited for and that have ended."""

    def below(self, pid: int) -> int:
        """Ticks of every process that `pid` started, of those they started, and of all of these that have ended."""
        return self.used[pid][1] + sum(self.used[child][0] + self.below(child) for child in self.children[pid])


def cpu_below() -> float:
    """CPU seconds of every process this one has started, of those they started, and of all of these that have ended.

    This process itself does not count, so two readings around a piece of work say what the work took. A process that
    its parent did not wait for is lost, so init may not adopt any.
    """
    return _read(os.getpid()).below(os.getpid()) / _ticks_per_s()


def cpu_of(pids: Sequence[int]) -> list[float]:
    """CPU seconds of each of these processes, with those that it started."""
    table = _read(os.getpid())
    return [(table.used[pid][0] + table.below(pid)) / _ticks_per_s() if pid in table.used else 0.0 for pid in pids]


def _read(own: int) -> _Table:
    table = _Table(defaultdict(list), {})
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            # The name stands in parentheses and may hold anything.
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended: the next reading has it with its parent
        pid = int(entry.parent.name)
        table.children[int(fields[1])].append(pid)
        table.used[pid] = (int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))
    if own not in table.used:
        raise BenchError(f"{PROC} does not say what processes use; this benchmark needs Linux")
    return table


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")
