"""Fork server: a process that has imported everything roles import and forks one per request, 20 times faster.

A forked role is the same `shoal ARGUMENTS` in a process of its own and can be killed like any other; it only skips five
seconds of imports. The fork server runs this file as its main program.
"""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_S = 180.0


class ForkedRole:
    """A role that was forked by the fork server, with the part of `subprocess.Popen` that the storm needs."""

    def __init__(self, fork_server: "ForkServer", pid: int) -> None:
        self._fork_server = fork_server
        self.pid = pid

    def poll(self) -> int | None:
        return self._fork_server.codes.get(self.pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def wait(self, timeout: float = START_S) -> int:
        with self._fork_server.changed:
            assert self._fork_server.changed.wait_for(lambda: self.pid in self._fork_server.codes, timeout)
        return self._fork_server.codes[self.pid]


class ForkServer:
    """A handle to the fork server's process. Every role it forked ends with the process that holds the handle."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.codes: dict[int, int] = {}
        self.changed = threading.Condition()
        self._pids: list[int] = []
        self._theirs, self._ours = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            pass_fds=[self._theirs],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._ours)  # ends what is still there
        os.close(self._theirs)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(START_S)
        self._reader.join(START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, arguments: Sequence[str], log: Path) -> ForkedRole:
        assert self._process.stdin is not None
        known = len(self._pids)
        self._process.stdin.write(json.dumps({"arguments": list(arguments), "log": str(log)}) + "\n")
        self._process.stdin.flush()
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._pids) > known, START_S), "the fork server does not answer"
        return ForkedRole(self, self._pids[known])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *numbers = line.split()
            with self.changed:
                if what == "forked":
                    self._pids.append(int(numbers[0]))
                else:
                    self.codes[int(numbers[0])] = int(numbers[1])
                self.changed.notify_all()


def _tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _be(arguments: Sequence[str], log: str, parent_pipe: str) -> None:
    """In the forked child: becomes the role, and never returns."""
    from shoal.cli import main

    code = 1
    try:
        os.setsid()
        null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for source, target in ((null, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        os.environ["SHOAL_PARENT_PIPE"] = parent_pipe
        sys.argv = ["shoal", *arguments]
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(parent_pipe: str) -> None:
    from shoal.process import set_defaults

    set_defaults()

    waiting = b""
    while True:
        if select.select([0], [], [], 0.05)[0]:
            if not (data := os.read(0, 65536)):
                return
            waiting += data
        while b"\n" in waiting:
            line, _, waiting = waiting.partition(b"\n")
            order = json.loads(line)
            if (pid := os.fork()) == 0:
                _be(order["arguments"], order["log"], parent_pipe)
            _tell(f"forked {pid}")
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                _tell(f"ended {ended[0]} {os.waitstatus_to_exitcode(ended[1])}")
        except ChildProcessError:
            pass


if __name__ == "__main__":
    _serve(sys.argv[1])
