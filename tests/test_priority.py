"""A low priority that counts: between sessions too, where Linux ignores the nice values of their processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal import priority
from shoal.priority import give_way, pass_on_priority
from shoal.subproc import Child

SPIN = [sys.executable, "-S", "-c", "while True: pass"]


@pytest.fixture(autouse=True)
def _low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "NICE", 10)


@pytest.fixture
def _autogroups() -> None:
    """Linux names no group where autogroups are off, or where a cgroup weighs the processes instead."""
    with session(SPIN) as pid:
        group = Path(f"/proc/{pid}/autogroup")
        if not group.exists() or not group.read_text().strip():
            pytest.skip("a new session gets no autogroup here")


@contextmanager
def session(command: list[str]) -> Iterator[int]:
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def group_nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.usefixtures("_autogroups")
def test_a_session_that_gives_way_gets_little_of_a_busy_core() -> None:
    with session(SPIN) as usual, session(SPIN) as low:
        core = {min(os.sched_getaffinity(0))}
        for pid in (usual, low):
            os.sched_setaffinity(pid, core)
        give_way(low)
        before = cpu_ticks(usual), cpu_ticks(low)
        deadline = time.monotonic() + 20.0
        while cpu_ticks(usual) - before[0] < 50 and time.monotonic() < deadline:
            time.sleep(0.1)
        took, got = cpu_ticks(usual) - before[0], cpu_ticks(low) - before[1]
        assert took >= 50
        assert got <= took / 3  # a ninth by the kernel's weights, half without the session's


@pytest.mark.usefixtures("_autogroups")
def test_a_session_within_one_that_gave_way_gives_way_too() -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        give_way()
        child = Child([sys.executable, "-S", "-c", "input()"])
        os._exit(0 if group_nice(os.getpid()) == group_nice(child.pid) == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.usefixtures("_autogroups")
def test_a_process_does_not_lower_a_session_that_is_not_its_own() -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()  # the session of these tests may have no group
        before = group_nice(os.getpid())
        process = subprocess.Popen(SPIN)
        give_way(process.pid)
        lowered = os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
        kept = group_nice(process.pid) == before
        process.kill()
        os._exit(0 if lowered and kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.usefixtures("_autogroups")
def test_what_has_the_usual_priority_passes_nothing_on() -> None:
    if os.getpriority(os.PRIO_PROCESS, 0):
        pytest.skip("these tests have a low priority themselves")
    with session(SPIN) as pid:
        pass_on_priority(pid)
        assert group_nice(pid) == 0


def test_a_process_that_has_ended_is_nobodys_error() -> None:
    with session(SPIN) as pid:
        pass
    give_way(pid)
    pass_on_priority(pid)
