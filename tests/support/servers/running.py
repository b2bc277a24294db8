"""Processes of tests and benchmarks that listen on a port of the loopback address."""

import itertools
import os
import random
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import BenchError
from shoal.wait import wait_until

START_S = 120.0
# From 32768 on Linux takes the ports of connections.
FIRST, RANGE, RANGES = 12_000, 500, 40
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_first = FIRST + _worker % RANGES * RANGE
_drawn, _given = random.SystemRandom().randrange(RANGE), itertools.count()
STOP_S = 10.0


@contextmanager
def running(command: Sequence[str], log: Path, *, listen: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is there inside the block, and has ended and been waited for after it.

    What it says goes to `log`; with `listen` its standard output is the caller's to read.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if listen else out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on, and that is nobody else's until a process that is told it binds it.

    It is below those that the system gives to any connection by itself. Each of pytest-xdist's processes goes round in
    a range of its own, from a place drawn at random: other tests may run on this machine.
    """
    for _ in range(RANGE):
        port = _first + (_drawn + next(_given)) % RANGE
        with socket.socket() as held, suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended hold nothing
            held.bind(("", port))
            return port
    raise BenchError(f"ports {_first} to {_first + RANGE - 1}: each of them is taken")


def is_taken(error: BenchError) -> bool:
    """Whether a server ended because somebody else has its port."""
    return "in use" in str(error)


def await_port(port: int, who: str, deadline_s: float = START_S) -> None:
    """Returns once somebody listens on a port."""

    def is_open() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_open, deadline_s, f"{who}: nothing listens on port {port} after {deadline_s:.0f} s", pause_s=0.02)
