"""Processes of tests and benchmarks that listen on a port of the loopback address."""

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.process import free_ports
from shoal.wait import wait_until

START_S = 60.0
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
    """A port of the loopback address that nobody listens on."""
    return free_ports([0])[0]


def await_port(port: int, who: str, deadline_s: float = START_S) -> None:
    """Returns once somebody listens on a port."""

    def is_open() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_open, deadline_s, f"{who}: nothing listens on port {port} after {deadline_s:.0f} s", pause_s=0.02)
