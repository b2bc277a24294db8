"""A run's trainer, validator and workers as the real processes they are, started, paused and stopped by a bench.

A paused role uses no processor, so that another side can be measured meanwhile. Nothing is left behind: a stopped
process cannot notice that its parent is gone, so a guard that can wakes the roles, and they end themselves.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

from shoal.errors import BenchError, WaitError
from shoal.process import Child, free_ports, stop_all
from shoal.rundir import RunDir
from shoal.telemetry.metrics import Entry, Tail

LOOK_S = 0.05
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
    """Trainer, validator and workers of a prepared run, at work inside the `with` block; no evaluator."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._steps = Tail(run.path / "metrics" / "trainer.jsonl")
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            for name, arguments, threads in self._roles():
                self._children.append(Child(name, arguments, threads, self._run.path / "logs" / f"{name}.log"))
            pids = [str(child.process.pid) for child in self._children]
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-c", GUARD, *pids], stdin=subprocess.PIPE, start_new_session=True
            )
        except BaseException:
            stop_all(self._children)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard as guard:
            assert guard.stdin
            guard.stdin.close()  # it wakes the roles and ends
        stop_all(self._children)

    def _roles(self, *join: str) -> list[tuple[str, list[str], int]]:
        """Name, command and threads of each; the trainer is the first."""
        path, config = str(self._run.path), self._run.config
        names = [f"worker-{i}" for i in range(config.workers.count)]
        return [
            ("trainer", ["trainer", path, *join], config.train.threads),
            ("validator", ["validator", path, *join], config.audit.threads),
            *[(name, ["worker", path, "--name", name, *join], config.workers.threads) for name in names],
        ]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            child.process.send_signal(number)

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
            elif len(ended) == len(self._children):
                raise BenchError(f"run {self._run.path}: ended after {len(done)} of {count} steps")
            elif time.monotonic() > deadline:
                raise WaitError(
                    f"run {self._run.path}: step {len(done) + 1} of {count} did not come within "
                    f"{STEP_DEADLINE_S:.0f} s; the trainer's log ends:\n{_tail(self._children[0])}"
                )
            time.sleep(LOOK_S)
        return done[:count]


class SwarmRoles(Roles):
    """The same roles meeting through a coordinator, with an origin and a relay for the versions, as in `shoal run`."""

    def _roles(self, *join: str) -> list[tuple[str, list[str], int]]:
        path = str(self._run.path)
        coordinator, origin, relay = free_ports([0, 0, 0])
        join = ("--join", f"http://127.0.0.1:{coordinator}")
        source = ["--from", f"http://127.0.0.1:{origin}"]
        return [
            *super()._roles(*join),
            ("coordinator", ["coordinator", path, "--port", str(coordinator)], 1),
            ("origin", ["origin", path, "--port", str(origin)], 1),
            ("relay", ["relay", path, *source, "--port", str(relay), *join], 1),
        ]


def _tail(child: Child) -> str:
    return "\n".join(child.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
