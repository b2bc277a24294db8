"""The processes of a run, as `shoal run` starts them, started, paused and stopped by a benchmark.

Trainer, validator and workers meet through a coordinator, and versions travel through an origin and a relay. A paused
process uses no CPU, so that another side can be measured meanwhile; a pause must be shorter than a signed request is
valid (`WINDOW_S`), for a request that was signed before it is sent after it. Nothing is left behind: a stopped process
cannot notice that its parent is gone, so a guard that can wakes all of them, and they end themselves.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from benchmarks.common.cpu_usage import cpu_of
from shoal.errors import BenchError, WaitError
from shoal.process import Child, stop_all
from shoal.roles.supervisor import forking, ports_of, start_roles
from shoal.rundir import RunDir
from shoal.telemetry.metrics import Entry, Tail

LOOK_S = 0.05
DRAIN_S = 0.2
# Also covers the start of the roles, which import torch and load the model.
STEP_DEADLINE_S = 300.0
LOG_LINES = 12
GUARD = """
import os, signal, sys
sys.stdin.read()
for pid in sys.argv[1:]:
    try:
        os.kill(int(pid), signal.SIGCONT)
    except ProcessLookupError:
        pass
"""


class Roles:
    """All roles of a prepared run but the evaluator, at work inside the `with` block."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._steps = Tail(run.path / "metrics" / "trainer.jsonl")
        self._children: list[Child] = []
        self._held = ExitStack()

    def __enter__(self) -> Self:
        server = self._held.enter_context(forking(self._run))
        try:
            self._children = start_roles(self._run, ports_of(self._run), without=("evaluator",), fork_server=server)
            pids = [str(child.process.pid) for child in self._children]
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-c", GUARD, *pids], stdin=subprocess.PIPE, start_new_session=True
            )
        except BaseException:
            stop_all(self._children)
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard as guard:
            assert guard.stdin
            guard.stdin.close()  # it wakes the roles and ends
        stop_all(self._children)
        self._held.close()

    def pause(self) -> None:
        """Stops every role: first those that ask, so that the services can answer what was asked of them."""
        for child in self._children:
            if not child.is_service:
                child.process.send_signal(signal.SIGSTOP)
        time.sleep(DRAIN_S)
        for child in self._children:
            if child.is_service:
                child.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for child in sorted(self._children, key=lambda child: not child.is_service):
            child.process.send_signal(signal.SIGCONT)

    def cpu(self) -> dict[str, float]:
        """CPU seconds that each role and its own children have used so far."""
        used = cpu_of([child.process.pid for child in self._children])
        return dict(zip((child.name for child in self._children), used, strict=True))

    def steps(self, count: int, said: Callable[[str], None]) -> list[Entry]:
        """The trainer's entries of the next `count` steps, as soon as they are done; `said` hears how far it is."""
        done: list[Entry] = []
        deadline = time.monotonic() + STEP_DEADLINE_S
        while len(done) < count:
            said(f"{len(done)} of {count} steps")
            # In this order: a trainer that has just ended has written all it had to say.
            ended = [child for child in self._children if child.poll() is not None]
            new = [entry for entry in self._steps.new() if entry["event"] == "step"]
            done += new
            if new:
                deadline = time.monotonic() + STEP_DEADLINE_S
            elif failed := [child for child in ended if child.poll() != 0]:
                raise BenchError(f"{failed[0].name} ended with {failed[0].poll()}; its log ends:\n{_tail(failed[0])}")
            elif all(child in ended for child in self._children if not child.is_service):
                raise BenchError(f"run {self._run.path}: ended after {len(done)} of {count} steps")
            elif time.monotonic() > deadline:
                raise WaitError(
                    f"run {self._run.path}: step {len(done) + 1} of {count} did not come within "
                    f"{STEP_DEADLINE_S:.0f} s; the trainer's log ends:\n{_tail(self._children[0])}"
                )
            time.sleep(LOOK_S)
        return done[:count]


def _tail(child: Child) -> str:
    return "\n".join(child.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
