"""Starting role processes so that none is ever left behind, and so that they run well side by side.

A child holds one end of a pipe whose other end only its parent has. When the parent is gone, for whatever reason, the
pipe closes and the child ends itself: no signal needs to be delivered and none can be missed.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PARENT_PIPE = "SHOAL_PARENT_PIPE"
# A role that ends with this code met an error that starting it again would meet again.
EXIT_REFUSED = 3

# glibc gives large freed tensors back to the kernel and faults them in again at the next step. With these variables it
# keeps them, which makes a training step of a small model 6 to 20 % faster. Whoever compares gives them to both sides.
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


class Child:
    """A role in a process of its own, in a session of its own: Ctrl-C reaches the supervisor alone."""

    def __init__(self, name: str, arguments: Sequence[str], threads: int, log: Path) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.threads = threads
        self.log = log
        self._start()

    def _start(self) -> None:
        ours, theirs = self._pipe()
        environment: Mapping[str, str] = {
            **KEEP_FREED_MEMORY,
            **SLEEP_WHEN_IDLE,
            **NO_HUB,
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            PARENT_PIPE: str(theirs),
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "shoal", *self.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._ours = ours

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
        """Lets go of our end of the pipe, which ends the child if it still runs."""
        if self._ours >= 0:
            ours, self._ours = self._ours, -1
            os.close(ours)


def stop_all(children: Sequence[Child], grace_s: float = 10.0) -> None:
    """Ends all children side by side: a signal to each, then one common deadline."""
    for child in children:
        if child.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.stop(max(0.0, deadline - time.monotonic()))
        child.close()


def die_with_parent() -> None:
    """In a child: ends this process when the supervisor that started it is gone."""
    descriptor = os.environ.pop(PARENT_PIPE, None)
    if descriptor is None:
        return

    def watch() -> None:
        os.read(int(descriptor), 1)  # returns when the other end closes; nothing is ever written
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
