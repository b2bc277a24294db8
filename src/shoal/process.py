"""Child processes that die with their parent, with thread settings that let several run side by side.

A child holds one end of a pipe whose other end only its parent has. When the parent is gone, for whatever reason, the
pipe closes and the child ends itself: no signal needs to be delivered and none can be missed.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from shoal.files import disk_errors, make_directory
from shoal.fork_server import ForkedProcess, ForkServer, ForkServerError
from shoal.priority import pass_on_priority

PARENT_PIPE = "SHOAL_PARENT_PIPE"
LAST_WORDS = "SHOAL_LAST_WORDS"
OMP_THREADS = "OMP_NUM_THREADS"
# The file through which ranks on one machine meet, in the place of torchrun's server.
RENDEZVOUS = "SHOAL_RENDEZVOUS"
MAX_WORDS = 4096  # bytes; any pipe takes them without a reader
_last_words: int | None = None
# A role that ends with this code met an error that starting it again would meet again.
EXIT_REFUSED = 3
# A worker that ends with this code gets no more leases; the run goes on without it.
EXIT_BANNED = 4

# A worker that ends with this code met a limit of a lent machine that is too small for the run.
EXIT_LIMIT = 5

# glibc gives large freed tensors back to the kernel and faults them in again at the next step. With these variables it
# keeps them, which makes a training step of a small model 6 to 20 % faster. Benchmarks give them to both sides.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_TOP_PAD_": "67108864",
}
# Idle OpenMP threads that spin take the core from the thread they wait for as soon as two roles share a machine: 15x
# slower than one thread on a busy machine with two cores, against 1.1x when they sleep.
SLEEP_WHEN_IDLE = {"OMP_WAIT_POLICY": "PASSIVE"}
NO_HUB = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def set_defaults() -> None:
    """Settings of this process that must stand before torch is imported; the user's own are left alone."""
    for name, value in {**SLEEP_WHEN_IDLE, **NO_HUB}.items():
        os.environ.setdefault(name, value)


def role_environment(threads: int) -> dict[str, str]:
    """Environment of a role with so many threads; the user's own settings are left alone."""
    return {**KEEP_FREED_MEMORY, **SLEEP_WHEN_IDLE, **NO_HUB, **os.environ, OMP_THREADS: str(threads)}


class Child:
    """A role in a process of its own, in a session of its own: Ctrl-C reaches the supervisor alone."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        threads: int,
        log: Path,
        *,
        is_service: bool = False,
        environment: Mapping[str, str] | None = None,
        fork_server: ForkServer | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """The fork server starts it, if there is one and as long as that lives. The environment is added to ours.

        `prefix` is a command that turns into the role, such as one that sets limits.
        """
        self.name = name
        self.arguments = list(arguments)
        self.threads = threads
        self.log = log
        self.is_service = is_service
        """A service works for the others and has no end of its own."""
        self._environment = dict(environment or {})
        self._fork_server = fork_server
        self._prefix = list(prefix)
        self._start()

    def _start(self) -> None:
        ours, theirs = self._pipe()
        heard, said = os.pipe()
        os.set_blocking(heard, False)
        try:
            make_directory(self.log.parent)
            with disk_errors(self.log), self.log.open("ab") as log:
                self.process = self._process(log.fileno(), {PARENT_PIPE: theirs, LAST_WORDS: said})
            pass_on_priority(self.process.pid)
        except BaseException:
            os.close(ours)
            os.close(heard)
            raise
        finally:
            os.close(theirs)
            os.close(said)
        self._ours, self._heard = ours, heard

    def _process(self, log: int, pipes: Mapping[str, int]) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._fork_server is not None:
            with suppress(ForkServerError):
                own = {OMP_THREADS: str(self.threads), **self._environment}
                return self._fork_server.start(self.arguments, own, log, pipes)
        return subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "shoal", *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=role_environment(self.threads)
            | self._environment
            | {name: str(number) for name, number in pipes.items()},
            pass_fds=list(pipes.values()),
            start_new_session=True,
        )

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """(our end, their end): we keep the writing end, which no other child inherits, and never write."""
        theirs, ours = os.pipe()
        return ours, theirs

    def restart(self) -> None:
        self.close()
        self._start()

    def poll(self) -> int | None:
        return self.process.poll()

    def last_words(self) -> str:
        """Why the role gave up, in its own words; they come through a pipe, for there may be no room for a log."""
        try:
            return os.read(self._heard, MAX_WORDS).decode(errors="replace") if self._heard >= 0 else ""
        except BlockingIOError:
            return ""

    def terminate(self) -> None:
        """Asks the role to end."""
        self.process.terminate()

    def stop(self, grace_s: float) -> None:
        """Asks the role to end, and makes it after `grace_s`."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def close(self) -> None:
        """Lets go of our ends of the pipes, which ends the child if it still runs."""
        if self._ours >= 0:
            for descriptor in (self._ours, self._heard):
                os.close(descriptor)
            self._ours = self._heard = -1


def stop_all(children: Sequence[Child], grace_s: float = 10.0) -> None:
    """Ends all children side by side: a signal to each, then one common deadline."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.stop(max(0.0, deadline - time.monotonic()))
        child.close()


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Ports on the loopback that nobody has, all different: those that are wanted where they are free (0: any).

    A role that is started again takes its own again.
    """
    with ExitStack() as stack:
        return [stack.enter_context(_bound(port)).getsockname()[1] for port in wanted]


def _bound(port: int) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        held.bind(("127.0.0.1", 0))
    return held


def say_last_words(text: str) -> None:
    """In a child: tells the supervisor why this role gives up. What cannot be written elsewhere must not matter."""
    if _last_words is not None:
        with suppress(OSError):
            os.write(_last_words, text.encode(errors="replace")[:MAX_WORDS])


def die_with_parent() -> None:
    """In a child: ends this process when the supervisor that started it is gone."""
    global _last_words
    if (said := os.environ.pop(LAST_WORDS, None)) is not None:
        _last_words = int(said)
        os.set_inheritable(_last_words, False)
    descriptor = os.environ.pop(PARENT_PIPE, None)
    if descriptor is None:
        return

    def watch() -> None:
        os.read(int(descriptor), 1)  # returns when the other end closes; nothing is ever written
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def tree_of(root: int, proc: Path = Path("/proc")) -> list[int]:
    """A process and its descendants, the process first."""
    tree = [root]
    for pid in tree:
        for children in (proc / str(pid) / "task").glob("*/children"):
            with suppress(OSError):
                tree += [int(text) for text in children.read_text().split()]
    return tree
