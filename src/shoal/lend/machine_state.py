"""What the owner does with a lent machine now: power, input, and what other programs compute. Linux and macOS.

On Linux, input is the last access to a terminal (as `w` shows it, exact to eight seconds) and, for a desktop, the idle
hint of systemd-logind. A desktop that sets no such hint, and no terminal, cannot be seen: then the CPU time of other
programs decides alone.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.lend.when import Observed, When

ASK_S = 5.0  # between questions that start a program
SHORTEST_S = 2.0  # over which CPU time is measured
COMMAND_S = 3.0
TICKS = os.sysconf("SC_CLK_TCK")


class MachineState:
    """Looks at this machine. `own_cpu_s` is the CPU time of what was started here, which is not the owner's."""

    def __init__(
        self,
        own_cpu_s: Callable[[], float],
        power: Path = Path("/sys/class/power_supply"),
        terminals: Path = Path("/dev"),
        proc: Path = Path("/proc"),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[list[str]], str] | None = None,
    ) -> None:
        self._own_cpu_s = own_cpu_s
        self._power, self._terminals, self._proc = power, terminals, proc
        self._wall, self._clock = wall, clock
        self._run = run or said_by
        self._asked: dict[str, tuple[float, str]] = {}
        self._cpu: tuple[float, float, float] | None = None
        self._others: float | None = None
        self._ahead: tuple[set[float], float] = set(), 0.0
        """Inputs in the future, and when a new one of them was looked at last."""

    def observe(self, when: When) -> Observed:
        """What these conditions need to know, and nothing else: programs that are asked may take seconds."""
        return Observed(
            minute=self.minute(),
            plugged=self.plugged() if when.plugged else True,
            input_s=self.input_s() if when.idle else None,
            others_cpus=self.others_cpus() if when.idle else None,
            cpus=os.cpu_count() or 1,
        )

    def minute(self) -> int:
        """Of the local day, since midnight."""
        local = time.localtime(self._wall())
        return 60 * local.tm_hour + local.tm_min

    def plugged(self) -> bool:
        """Whether the machine runs on mains; one that has no battery does."""
        if sys.platform == "darwin":
            return "Battery Power" not in self._ask(["pmset", "-g", "batt"])
        supplies = list(_supplies(self._power))
        if any(kind in ("Mains", "USB", "Wireless") and online for kind, online, _ in supplies):
            return True
        return not any(kind == "Battery" and status in ("Discharging", "Not charging") for kind, _, status in supplies)

    def input_s(self) -> float | None:
        """Seconds since the last input that can be seen; None if none can."""
        if sys.platform == "darwin":
            said = re.search(r'"HIDIdleTime" = (\d+)', self._ask(["ioreg", "-c", "IOHIDSystem"]))
            return int(said[1]) / 1e9 if said else None
        seen = []
        for path in (*self._terminals.glob("pts/[0-9]*"), *self._terminals.glob("tty[0-9]*")):
            with suppress(OSError):
                seen.append(path.stat().st_atime)
        found = min(self._passed_since(seen)) if seen else None
        return 0.0 if self._desktop_in_use() else found

    def _passed_since(self, seen: Collection[float]) -> Iterator[float]:
        """Seconds since times of the wall clock; since those in the future, which there are after the clock was set
        back, from when the last of them was first looked at."""
        now = self._wall()
        yield from (now - at for at in seen if at <= now)
        if ahead := {at for at in seen if at > now}:
            if ahead - self._ahead[0]:
                self._ahead = ahead, self._clock()
            yield self._clock() - self._ahead[1]

    def _desktop_in_use(self) -> bool:
        sessions = [
            line.split()[0] for line in self._ask(["loginctl", "list-sessions", "--no-legend"]).splitlines() if line
        ]
        if not sessions:
            return False
        return desktop_in_use(self._ask(["loginctl", "show-session", *sessions, "-p", "Type", "-p", "IdleHint"]))

    def others_cpus(self) -> float | None:
        """CPUs that others kept busy since the last look but one; None before there are two, or without accounts."""
        busy = self._busy_s()
        if busy is None:
            return None
        now, own = self._clock(), self._own_cpu_s()
        if self._cpu is None:
            self._cpu = (now, busy, own)
        elif (passed := now - self._cpu[0]) >= SHORTEST_S:
            ours = max(0.0, own - self._cpu[2])  # less, if one of ours has ended
            self._others = max(0.0, busy - self._cpu[1] - ours) / passed
            self._cpu = (now, busy, own)
        return self._others

    def _busy_s(self) -> float | None:
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            # Not steal, the next one: what other guests of a host compute is not what this machine's owner does.
            user, nice, system, _idle, _wait, irq, softirq = (int(text) for text in first[1:8])
        except (OSError, ValueError):
            return None
        return (user + nice + system + irq + softirq) / TICKS

    def _ask(self, command: list[str]) -> str:
        """What a program says, at most a few seconds old; empty if it is missing or fails."""
        key = " ".join(command)
        asked, said = self._asked.get(key, (-ASK_S, ""))
        if self._clock() - asked >= ASK_S:
            said = self._run(command)
            self._asked[key] = (self._clock(), said)
        return said


def desktop_in_use(said: str) -> bool:
    """Whether logind knows a graphical session that is not idle; `said` has a paragraph per session."""
    sessions = [dict(line.split("=", 1) for line in part.splitlines() if "=" in line) for part in said.split("\n\n")]
    return any(
        session.get("Type") in ("x11", "wayland", "mir") and session.get("IdleHint") == "no" for session in sessions
    )


def _supplies(folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Kind of each power supply, whether it is online, and what a battery says that it does."""
    with suppress(OSError):
        for supply in sorted(folder.iterdir()):
            if _line(supply / "scope") != "Device":  # a mouse's battery
                yield _line(supply / "type"), _line(supply / "online") == "1", _line(supply / "status")


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def said_by(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
