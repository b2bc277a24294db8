"""Roles that are asked to end, and do, were stopped; those that died otherwise are dead."""

import os
import signal
import sys
from pathlib import Path

from shoal.process import Child
from shoal.roles.supervisor import stop_roles
from shoal.telemetry.status import State, read_status
from shoal.watch.show import condition
from tests.support.until import until

START_S = 120.0
ROLE = """
import signal, sys, time
from pathlib import Path
from shoal.files import locked
from shoal.telemetry.status import StatusFile
path, name, hears = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with locked(path / "locks" / name, "taken"):
    status = StatusFile(path / "status" / f"{name}.json", name)
    def end(*_):
        status.done("stopped")
        sys.exit(0)
    if hears != "dies":
        signal.signal(signal.SIGTERM, end if hears == "says so" else signal.SIG_IGN)
    status.working("on it")
    time.sleep(600)
"""


def start(path: Path, name: str, hears: str = "dies") -> Child:
    prefix = [sys.executable, "-c", ROLE, str(path), name, hears]
    return Child(name, [], 1, path / "logs" / name, prefix=prefix)


def test_a_role_that_ended_when_it_was_asked_was_stopped_and_one_that_was_killed_is_dead(tmp_path: Path) -> None:
    roles = {"trainer": "dies", "worker-0": "dies", "coordinator": "says so", "worker-1": "hears nothing"}
    children = [start(tmp_path, name, hears) for name, hears in roles.items()]

    def found() -> dict[str, State]:
        return {status.role: status.state for status in read_status(tmp_path)}

    try:
        until(lambda: list(found().values()) == ["working"] * len(roles), START_S)
        os.kill(children[1].process.pid, signal.SIGKILL)
        children[1].process.wait()
    finally:
        stop_roles(tmp_path, children[:3], START_S)
        stop_roles(tmp_path, children[3:], grace_s=0.1)
    assert found() == {"trainer": "stopped", "worker-0": "dead", "worker-1": "dead", "coordinator": "done"}
    assert read_status(tmp_path)[0].doing == "on it"
    assert condition(read_status(tmp_path)).startswith("stopped; `shoal run` resumes")
