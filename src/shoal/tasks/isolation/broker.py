"""Sandbox broker: a confined process cannot create sandboxes, so a second process does it on request, and nothing else.

A confined process may neither mount nor start anything, and a sandbox is made of both. The broker is forked before it
is confined and meets no task, no table and no scorer: it is told a program, an input and bounds, and tells what came
out of the sandbox. It ends with the process that asks it.

A broker runs one program at a time. A process with threads has a pool of brokers, and a thread waits for a free one.
"""

import base64
import json
import os
import queue
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from shoal.subproc import say
from shoal.tasks.isolation.landlock import limit
from shoal.tasks.isolation.sandbox import Bounds, Outcome, find_bubblewrap, run_program, run_through

MAX_BROKERS = 16
# A scorer has a handful of descriptors when its brokers are forked, and two for each of them.
MAX_INHERITED = 64


def programs_at_once() -> int:
    """How many programs a process with threads may run at a time: as many as there are cores, because the time of each
    is limited, and programs that share a core would run out of it."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return max(2, min(MAX_BROKERS, cores))


class Asking:
    """The confined end."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes]) -> None:
        self._requests = requests
        self._replies = replies

    def run(self, program: str, given: bytes, bounds: Bounds, main: str) -> Outcome:
        asked: dict[str, Any] = {"program": program, "given": _text(given), "main": main}
        asked |= {"seconds": bounds.seconds, "memory": bounds.memory, "output": bounds.output}
        with suppress(BrokenPipeError):  # it was killed while it had nothing to do
            say(self._requests, asked)
        if not (line := self._replies.readline()):
            os._exit(1)  # without a broker nothing more can be scored: the scorer's owner starts a new process
        reply = json.loads(line)
        return Outcome(reply["end"], base64.b64decode(reply["output"]), reply["seconds"])


class Pool:
    """Brokers that any thread may ask."""

    def __init__(self, brokers: Sequence[Asking]) -> None:
        self._free: queue.SimpleQueue[Asking] = queue.SimpleQueue()
        for broker in brokers:
            self._free.put(broker)

    def run(self, program: str, given: bytes, bounds: Bounds, main: str) -> Outcome:
        broker = self._free.get()
        try:
            return broker.run(program, given, bounds, main)
        finally:
            self._free.put(broker)


def start_brokers(count: int = 1) -> None:
    """Forks brokers and has this process's programs run by them; TaskError where no sandbox can be made."""
    find_bubblewrap()
    run_through(Pool([_fork() for _ in range(count)]))


def _fork() -> Asking:
    theirs, ask = os.pipe()
    answers, ours = os.pipe()
    if os.fork() == 0:
        try:
            os.close(ask)
            os.close(answers)
            _serve(os.fdopen(theirs, "rb"), os.fdopen(ours, "wb"))
        finally:
            os._exit(0)
    os.close(theirs)
    os.close(ours)
    return Asking(os.fdopen(ask, "wb"), os.fdopen(answers, "rb"))


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    kept = (requests.fileno(), replies.fileno())
    for descriptor in range(3, MAX_INHERITED):
        if descriptor not in kept:
            with suppress(OSError):  # or a reader that waits for the end of a pipe would wait for this process too
                os.close(descriptor)
    limit(processes=True)
    for line in requests:
        asked: dict[str, Any] = json.loads(line)
        bounds = Bounds(asked["seconds"], asked["memory"], asked["output"])
        found = run_program(asked["program"], base64.b64decode(asked["given"]), bounds, asked["main"])
        say(replies, {"end": found.end, "output": _text(found.output), "seconds": found.seconds})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
