"""Child process over pipes: framed messages with deadlines, a kill that always works, and how the child ended in words.

A message is one line of JSON; a reply may be followed by raw bytes whose number it gives. Whatever a child does, its
owner waits no longer and reads no more than it said. The child has a session of its own, so Ctrl-C does not reach it,
and sees the end of its requests when its owner ends, however it ends.
"""

import json
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from shoal.files import parse_json
from shoal.priority import pass_on_priority
from shoal.text import one_line

# What is kept of a child's standard error, for the error that its owner raises.
MAX_STDERR = 4000
MAX_LAST_WORDS = 300
END_S = 1.0


class ChildError(Exception):
    """The child did not do what was asked, and cannot be relied on any more; the message goes on from its name."""


class LateError(ChildError):
    """It took longer than it was given."""


class NotJsonError(ChildError):
    """It sent something other than a message. The error does not quote it: strangers' children would then write it."""

    def __init__(self, said: bytes) -> None:
        super().__init__("said what is not JSON")
        self.said = said


class Child:
    """A process that is asked over its standard input and answers on its standard output."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, *, show_stderr: bool = True
    ) -> None:
        """With `show_stderr` what it prints to standard error is seen on ours; its end is kept in any case."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            bufsize=0,
            start_new_session=True,
        )
        pass_on_priority(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        self._pending = bytearray()
        self._heard = b""
        # A thread, because a child that prints a lot while nobody asks it anything must not be held up by a full pipe.
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr, show_stderr), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """For `select`: readable when a reply has begun."""
        return self._from

    @property
    def has_line(self) -> bool:
        """Whether a whole message has come that was not received yet."""
        return b"\n" in self._pending

    def send(self, messages: Sequence[object], seconds: float = math.inf) -> None:
        """Sends messages; ChildError if it takes nothing for so many seconds."""
        self.write(b"".join(map(line_of, messages)), seconds)

    def write(self, lines: bytes, seconds: float = math.inf) -> None:
        """The same with messages that are lines already (`line_of`)."""
        left = memoryview(lines)
        while left:
            if not _is_ready(self._to, select.POLLOUT, seconds):
                raise LateError(f"took no messages for {seconds:g} s")
            left = left[self.offer(left) :]

    def offer(self, lines: bytes | memoryview) -> int:
        """Writes as much of messages that are lines as there is room for now, without waiting; how many bytes."""
        taken, left = 0, memoryview(lines)
        try:
            while taken < len(left):
                taken += os.write(self._to, left[taken : taken + select.PIPE_BUF])
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise ChildError(self.end()) from None
        return taken

    def requests_fileno(self) -> int:
        """For `select`: writable when `offer` would write something."""
        return self._to

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def receive(self, seconds: float = math.inf, max_bytes: int = 1 << 16) -> Any:
        """The next message, of at most about so many bytes; ChildError if none comes in time."""
        deadline = time.monotonic() + seconds
        looked = 0
        while (end := self._pending.find(b"\n", looked)) < 0:
            if (looked := len(self._pending)) > max_bytes:
                raise ChildError(f"said more than {max_bytes} bytes")
            self._pending += self._more(deadline, seconds)
        line = self._take(end + 1)
        try:
            return parse_json(line)
        except (ValueError, RecursionError):
            raise NotJsonError(line.strip()) from None

    def read(self, size: int, seconds: float) -> bytearray:
        """The raw bytes that follow a message, in one buffer; ChildError if they do not come in time."""
        deadline = time.monotonic() + seconds
        data = bytearray(size)
        begun = self._take(size)
        data[: len(begun)] = begun
        left = memoryview(data)[len(begun) :]
        while left:
            self._await(deadline, seconds)
            if not (count := os.readv(self._from, [left])):
                raise ChildError(self.end())
            left = left[count:]
        return data

    def close(self, grace_s: float = 0.0) -> None:
        """Ends its requests, gives it so long to end by itself, and then kills it and all that it started."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        if grace_s:
            self.code(grace_s)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it is the head of its session
        process.wait()
        process.stdout.close()

    def code(self, wait_s: float = END_S) -> int | None:
        """What it ended with; None if it has not ended after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_s)
        return None

    def end(self) -> str:
        """How it ended, in words."""
        code = self.code()
        if code is None:
            return "closed its pipe"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def stderr(self) -> list[str]:
        """The last lines that it printed to standard error."""
        self._listener.join(0.2)  # it may still be reading what the child said before its end
        return self._heard.decode(errors="replace").strip().splitlines()

    def last_words(self) -> str:
        """The last of these lines, after a colon; empty if there is none."""
        said = self.stderr()
        return f": {one_line(said[-1])[:MAX_LAST_WORDS]}" if said else ""

    def _take(self, size: int) -> bytes:
        """At most so many bytes of what has come and was not looked at."""
        taken = bytes(self._pending[:size])
        del self._pending[:size]
        return taken

    def _more(self, deadline: float, seconds: float) -> bytes:
        self._await(deadline, seconds)
        if not (data := os.read(self._from, 1 << 16)):
            raise ChildError(self.end())
        return data

    def _await(self, deadline: float, seconds: float) -> None:
        if not _is_ready(self._from, select.POLLIN, deadline - time.monotonic()):
            raise LateError(f"took longer than {seconds:g} s")

    def _listen(self, errors: IO[bytes], show: bool) -> None:
        with errors:
            while data := errors.read(1 << 12):
                self._heard = (self._heard + data)[-MAX_STDERR:]
                if show:
                    with suppress(OSError):
                        os.write(2, data)  # not through sys.stderr, whose lock a thread must not hold when we exit


def say(pipe: IO[bytes], message: object) -> None:
    """In the child: a message. Raw bytes may be written after it."""
    pipe.write(line_of(message))
    pipe.flush()


def line_of(message: object) -> bytes:
    """A message as it goes through a pipe."""
    return json.dumps(message).encode() + b"\n"


def _is_ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(None if seconds == math.inf else max(0.0, seconds) * 1000))
