"""A core of vLLM that is gone, or that is there and does not answer, wakes who waits for it.

The core is a process with a child here; `tests/vllm/test_engine.py` stops a real one.
"""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.generate.vllm.death_watch import DeathWatch, watch_for_death
from shoal.process import tree_of
from tests.support.until import until

EXCEPTIONS = "vllm.v1.engine.exceptions"


class EngineDeadError(Exception):
    """vLLM's own."""


class Resources:
    """vLLM's, which says that an engine is dead as soon as its process is."""

    def __init__(self, core: "subprocess.Popen[bytes]") -> None:
        self.core = core
        self.engine_manager = SimpleNamespace(processes=[core])

    @property
    def engine_dead(self) -> bool:
        return self.core.poll() is not None


class Client:
    """As much of vLLM's synchronous client as is watched."""

    def __init__(self, core: "subprocess.Popen[bytes]") -> None:
        self.resources = Resources(core)
        self.outputs_queue: queue.Queue[Exception] = queue.Queue()
        self.utility_results: dict[int, Future[str]] = {1: Future()}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    exceptions: Any = ModuleType(EXCEPTIONS)
    exceptions.EngineDeadError = EngineDeadError
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, EXCEPTIONS, exceptions)
    core = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    ranks: list[int] = []
    try:
        until(lambda: len(tree_of(core.pid)) == 2, 60)
        ranks = tree_of(core.pid)[1:]
        yield Client(core)
    finally:
        core.kill()
        core.wait()
        for rank in ranks:
            with_no_error_if_gone(rank)


def with_no_error_if_gone(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_running(process: int) -> bool:
    """Not as a zombie, which nobody may have waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def call(client: Client, watch: DeathWatch, seconds: float) -> None:
    """What vLLM's client does: it waits for ever."""
    with watch.within(seconds, "it was asked"):
        client.utility_results[1].result(120)


def test_a_core_that_is_stuck_is_killed_with_its_ranks_and_who_waits_is_told(client: Client) -> None:
    core, rank = tree_of(client.resources.core.pid)
    for process in (core, rank):
        os.kill(process, signal.SIGSTOP)
    watch = watch_for_death(client)
    with pytest.raises(EngineDeadError):
        call(client, watch, 0.5)
    assert isinstance(client.outputs_queue.get(timeout=60), EngineDeadError)
    assert watch.late == "did not answer for 0.5 s while it was asked"
    until(lambda: not is_running(rank), 60)


def test_a_core_that_is_killed_by_somebody_is_no_late_one(client: Client) -> None:
    watch = watch_for_death(client)
    client.resources.core.kill()
    with pytest.raises(EngineDeadError):
        call(client, watch, 100)
    assert watch.late == ""


def test_each_call_has_its_own_time_and_between_calls_there_is_none(client: Client) -> None:
    watch = watch_for_death(client)
    for _ in range(3):
        with watch.within(3.0, "it was asked"):
            time.sleep(1.2)
    time.sleep(3.2)
    assert not client.resources.engine_dead
    assert watch.late == ""


def test_ranks_that_outlive_their_core_are_ended_before_the_next_engine_starts(client: Client) -> None:
    """They hold their devices' memory, and those that wait in a collective do not see that their core is gone."""
    rank = tree_of(client.resources.core.pid)[1]
    os.kill(rank, signal.SIGSTOP)
    watch = watch_for_death(client)
    client.resources.core.kill()
    client.resources.core.wait()
    assert is_running(rank)
    watch.end()
    assert not is_running(rank)


def test_a_later_process_of_the_same_number_is_left_alone(client: Client) -> None:
    rank = tree_of(client.resources.core.pid)[1]
    watch = watch_for_death(client)
    watch._processes = dict.fromkeys(watch._processes, "began before")
    watch.end()
    assert is_running(rank)
    assert is_running(client.resources.core.pid)
