"""Memory and CPU time of a process and all that it started, from Linux's /proc; and a cgroup for them where systemd
gives one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.process import tree_of

TICKS = os.sysconf("SC_CLK_TCK")
TRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree uses. Memory is its own: the system reclaims pages of files by itself."""

    memory: int = 0
    cpu_s: float = 0.0
    processes: int = 0


def usage_of(root: int, proc: Path = Path("/proc")) -> Usage:
    """What a process and its descendants use now; nothing if it has ended, or if there are no such accounts.

    The CPU time of those that have ended is with who waited for them, so a tree's never falls while its root lives.
    """
    found = Usage()
    for pid in tree_of(root, proc):
        with suppress(OSError, ValueError, IndexError, KeyError):
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            cpu_s = sum(map(int, fields[11:15])) / TICKS  # its own and that of ended children, of user and system
            found = replace(found, cpu_s=found.cpu_s + cpu_s)
            memory = _memory_of((proc / str(pid) / "status").read_text())  # one that nobody waited for yet has none
            found = replace(found, memory=found.memory + memory, processes=found.processes + 1)
    return found


def _memory_of(status: str) -> int:
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def scope_command(memory: int | None, threads: int | None) -> list[str]:
    """What to begin a command with, so that systemd keeps its limits in a cgroup; empty where it cannot.

    Without swap: a lent machine that swaps is of no use to its owner.
    """
    if (memory is None and threads is None) or not has_user_manager():
        return []
    limits = [f"MemoryMax={memory}", "MemorySwapMax=0"] if memory is not None else []
    limits += [f"CPUQuota={100 * threads}%"] if threads is not None else []
    options = [text for limit in limits for text in ("-p", limit)]
    return ["systemd-run", "--user", "--scope", "--quiet", "--collect", *options, "--"]


def has_user_manager() -> bool:
    """Whether systemd runs for this user and gives out scopes with a limit on memory."""
    if not sys.platform.startswith("linux") or shutil.which("systemd-run") is None:
        return False
    command = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "MemoryMax=1G", "--", "true"]
    return succeeds(command)


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=TRY_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
