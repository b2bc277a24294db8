"""What the processes below this one have used."""

import os
from collections import defaultdict
from pathlib import Path

from shoal.errors import BenchError

PROC = Path("/proc")


def cpu_below() -> float:
    """CPU seconds of every process this one has started, of those they started, and of all of these that have ended.

    This process itself does not count, so two readings around a piece of work say what the work took. A process that
    was not waited for by whoever started it is lost; so nothing may be left to init.
    """
    own = os.getpid()
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, tuple[int, int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            # The name stands in parentheses and may hold anything.
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended: the next reading has it with its parent
        pid = int(entry.parent.name)
        children[int(fields[1])].append(pid)
        used[pid] = (int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))
    if own not in used:
        raise BenchError(f"{PROC} does not tell what processes use; this bench needs Linux")
    ticks, below = used[own][1], list(children[own])
    while below:
        pid = below.pop()
        ticks += sum(used[pid])
        below += children[pid]
    return ticks / os.sysconf("SC_CLK_TCK")
