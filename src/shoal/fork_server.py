"""Fork server: a process that has imported what roles import, and forks one role per request.

A forked role is `shoal ARGUMENTS` in a process and a session of its own, like any other; it only skips five seconds of
imports, and shares their memory with the others. It outlives a fork server that is killed, which takes with it nothing
but the exit codes of its roles.

Only for Linux without a GPU: other systems' libraries do not survive a fork, and neither does a driver that an import
has woken up.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from shoal.errors import ShoalError
from shoal.priority import pass_on_priority
from shoal.wait import Wait

MAX_MESSAGE = 65536
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
LOOK_S = 0.01
MAX_DESCRIPTORS = 8
# The first role waits until everything is imported.
START_S = 180.0


class ForkServerError(ShoalError):
    """The fork server is gone."""


def can_fork() -> bool:
    """Whether roles may be forked on this machine."""
    return sys.platform == "linux" and not any(Path(device).exists() for device in GPU_DEVICES)


class ForkedProcess:
    """A process that the fork server forked, with what a role's owner needs of `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        wait = Wait(float("inf") if timeout is None else timeout, LOOK_S)
        while (code := self.poll()) is None:
            if not wait.pause():
                raise subprocess.TimeoutExpired("shoal", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A handle to a fork server's process, which has imported `preload`. What that process says goes to `log`."""

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(START_S)
        self._lock = threading.Lock()
        self._is_gone = False
        self._ended: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        """A pidfd of each process that has not ended: it tells of the end even when nobody tells the exit code."""
        with theirs, log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal.fork_server", str(theirs.fileno()), *preload],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: int, inherited: Mapping[str, int]
    ) -> ForkedProcess:
        """Forks `shoal ARGUMENTS`, which writes to the open file `log`. The environment is added to the fork server's;
        so are the numbers that the inherited descriptors have in the new process, under their names."""
        order = {"arguments": list(arguments), "environment": dict(environment), "inherited": list(inherited)}
        with self._lock:
            if self._is_gone:
                raise ForkServerError("fork server: is gone")
            try:
                socket.send_fds(self._ours, [json.dumps(order).encode()], [log, *inherited.values()])
                while (pid := self._hear()) is None:
                    pass
            except OSError as error:
                # What it has not done by now it must not do later: its owner starts the role without it.
                self._is_gone = True
                self.process.kill()
                raise ForkServerError(f"fork server: {error}") from None
            with suppress(ProcessLookupError):  # it has ended, and its code is on its way
                self._handles[pid] = os.pidfd_open(pid)
        return ForkedProcess(self, pid)

    def code_of(self, pid: int) -> int | None:
        """The exit code of a process, None while it runs. If the fork server is gone, a process that ends counts as
        killed."""
        with self._lock:
            while pid not in self._ended and not self._is_gone and _is_ready(self._ours.fileno()):
                with suppress(OSError):
                    self._hear()
            handle = self._handles.get(pid)
            if self._is_gone and pid not in self._ended and (handle is None or _is_ready(handle)):
                self._ended[pid] = -signal.SIGKILL
            if pid in self._ended and handle is not None:
                os.close(self._handles.pop(pid))
            return self._ended.get(pid)

    def close(self) -> None:
        """Ends the fork server; processes that it forked go on."""
        with self._lock:
            self._is_gone = True
            self._ours.close()
            self.process.kill()  # it may be at its imports still, and has nothing to tidy up
            self.process.wait()
            while self._handles:
                os.close(self._handles.popitem()[1])

    def _hear(self) -> int | None:
        """Reads one message: the process that was forked; None if it says that one has ended."""
        try:
            message = self._ours.recv(MAX_MESSAGE)
        except ConnectionError:
            message = b""
        if not message:
            self._is_gone = True
            raise ConnectionResetError(f"ended with code {self.process.wait()}")
        pid, *code = map(int, message.split())
        if code:
            self._ended[pid] = code[0]
            return None
        self._ended.pop(pid, None)  # of an earlier process of the same number
        return pid


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def serve(orders: socket.socket) -> None:
    """Forks on demand and tells exit codes, until nobody holds the other end any more.

    In a forked process it runs the command, and raises what ends that.
    """
    running: dict[int, int] = {}
    while True:
        for ready in select.select([orders.fileno(), *running], [], [])[0]:
            if ready in running:
                pid = running.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(ConnectionError):
                    orders.send(f"{pid} {code}".encode())
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, MAX_MESSAGE, MAX_DESCRIPTORS)
            if not order:
                return
            if (pid := os.fork()) == 0:
                for descriptor in (orders.detach(), *running):
                    os.close(descriptor)
                _become(json.loads(order), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid
            with suppress(ConnectionError):
                orders.send(str(pid).encode())


def _become(order: dict[str, Any], log: int, *inherited: int) -> NoReturn:
    """In the forked process: runs the command."""
    os.setsid()
    pass_on_priority()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ |= order["environment"]
    os.environ |= dict(zip(order["inherited"], map(str, inherited), strict=True))
    sys.argv = ["shoal", *order["arguments"]]
    import_module("shoal.cli").main()
    sys.exit(0)


def _main(descriptor: str, *preload: str) -> None:
    for name in preload:
        with suppress(Exception):  # a role that meets the same error says so in its own words
            import_module(name)
    gc.freeze()  # what is imported is never looked at again, so its memory stays shared
    serve(socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
