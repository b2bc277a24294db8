"""Wakes a caller of vLLM whose engine core was killed, and kills one that does not answer: vLLM's synchronous client
would wait for it for ever.

vLLM notices that the process is gone and marks its client, but does not tell a caller that waits for outputs or for a
result. A core that is there and stuck, in a collective or on a driver that hangs, it does not notice at all.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.process import tree_of

CHECK_S = 0.1
# What ranks that see the end of their core are given to end in order, and a driver to free a large device.
GRACE_S, END_S = 3.0, 60.0


class DeathWatch:
    """Watches one client; `late` says what was not answered in time, if the core was killed for that."""

    def __init__(self, client: Any) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        self.late = ""
        self._client = weakref.ref(client)
        self._processes = processes_of(client)
        self._error: type[Exception] = EngineDeadError
        self._lock = threading.Lock()
        self._due: tuple[float, str] | None = None
        threading.Thread(target=self._watch, daemon=True, name="vllm-death-watch").start()

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Gives what is called in here so long to come back; then the core is killed, and the caller gets an
        `EngineDeadError`."""
        with self._lock:
            self._due = time.monotonic() + seconds, f"did not answer for {seconds:g} s while {what}"
        try:
            yield
        finally:
            with self._lock:
                self._due = None

    def end(self) -> None:
        """Ends what is left of the processes that the client began with, and waits until they are gone: ranks outlive a
        core that was killed, and as long as they do they hold their devices' memory, which the next engine needs."""
        if self._are_gone(GRACE_S):
            return
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._are_gone(END_S)

    def _left(self) -> list[int]:
        return [pid for pid, began in self._processes.items() if beginning(pid) == began]

    def _are_gone(self, seconds: float) -> bool:
        """Whether they are, after so long at most."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(CHECK_S)
        return not left

    def _watch(self) -> None:
        while (client := self._client()) is not None:
            with self._lock:
                if self._due is not None and time.monotonic() > self._due[0]:
                    self.late, self._due = self._due[1], None
                    kill_core(client)
            if client.resources.engine_dead:
                client.outputs_queue.put_nowait(self._error())
                for result in list(client.utility_results.values()):
                    if not result.done():
                        result.set_exception(self._error())
            del client
            time.sleep(CHECK_S)


def processes_of(client: Any) -> dict[int, str]:
    """The engine core and all that it has started, each with its beginning."""
    found = [pid for core in client.resources.engine_manager.processes for pid in tree_of(core.pid)]
    return {pid: began for pid in found if (began := beginning(pid)) is not None}


def beginning(pid: int, proc: Path = Path("/proc")) -> str | None:
    """When a process began, by which it is known from a later one of the same number; None if there is none, or nothing
    of it but its result."""
    with suppress(OSError, IndexError):
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in (proc / str(pid) / "task").iterdir()
        ]
        if set(states) - {"Z", "X"}:
            return fields[19]
    return None


def kill_core(client: Any) -> None:
    """Kills the engine core with all that it started: ranks that are stuck themselves do not see its end."""
    for core in client.resources.engine_manager.processes:
        for pid in tree_of(core.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def watch_for_death(client: Any) -> DeathWatch:
    """Gives every call of this client, from here on, an `EngineDeadError` once its engine core is gone."""
    return DeathWatch(client)
