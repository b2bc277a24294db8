"""Peers we measure ourselves against: each in an environment of its own, each a process spoken to in JSON lines.

Nothing of a peer is ever installed into the user's environment. A peer uses no processor until it is asked, so that two
sides can be measured in turns within one run.
"""

import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from shoal.errors import BenchError, WaitError
from shoal.process import KEEP_FREED_MEMORY, SLEEP_WHEN_IDLE
from shoal.subproc import Child, ChildError, LateError, NotJsonError

TRL_SCRIPT = Path(__file__).with_name("trl.py")
TRL_REQUIREMENTS = (
    "torch==2.13.0",
    "trl==1.16.0",
    "transformers==5.22.2",
    "tokenizers==0.23.3",
    "accelerate==1.15.0",
    "datasets==5.2.0",
)


INSTALL_DEADLINE_S = 3600.0
EXIT_GRACE_S = 10.0
TAIL_LINES = 20
MAX_ANSWER = 1 << 28


def trl_peer(cache: Path) -> "Peer":
    """TRL's GRPOTrainer, to be entered and then asked as `peers/trl.py` says."""
    python = peer_python("trl", TRL_REQUIREMENTS, cache=cache)
    return Peer("trl", python, TRL_SCRIPT, environment={**KEEP_FREED_MEMORY, **SLEEP_WHEN_IDLE})


def peer_python(name: str, requirements: Sequence[str], *, cache: Path, deadline_s: float = INSTALL_DEADLINE_S) -> Path:
    """The python of a peer's own virtual environment, which is made at first use.

    `complete.json` is written last and says what was installed. An environment without it, or with another list, is
    removed and made again: what an interrupted install left is never used.
    """
    home = cache / "peers" / name
    python = home / "bin" / "python"
    complete = home / "complete.json"
    wanted = json.dumps({"python": platform.python_version(), "requirements": list(requirements)})

    def is_complete() -> bool:
        return python.exists() and complete.exists() and complete.read_text() == wanted

    if not is_complete():
        with _only_installer(name, cache / "peers" / f"{name}.lock"):
            if not is_complete():
                shutil.rmtree(home, ignore_errors=True)
                _install(name, home, python, requirements, deadline_s)
                complete.write_text(wanted)
    return python


@contextmanager
def _only_installer(name: str, lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError(
                f"peer {name}: another process is installing it and holds {lock}; try again later"
            ) from None
        yield


def _install(name: str, home: Path, python: Path, requirements: Sequence[str], deadline_s: float) -> None:
    commands = [[sys.executable, "-m", "venv", *([] if requirements else ["--without-pip"]), str(home)]]
    if requirements:
        pip = [str(python), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        commands.append([*pip, "--progress-bar", "off", *requirements])
    console = Console(stderr=True)
    console.print(f"Installing peer {name} into {home}, once: {' '.join(requirements)}", markup=False, highlight=False)
    with console.status(f"peer {name}") as status:
        for command in commands:
            try:
                _run(command, deadline_s, lambda line: status.update(Text(f"peer {name}: {line}", no_wrap=True)))
            except BenchError as failure:
                raise BenchError(f"peer {name} could not be installed into {home}: {failure}") from None


def _run(command: Sequence[str], deadline_s: float, show: Callable[[str], None]) -> None:
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    started = time.monotonic()
    with _start(command) as process:
        assert process.stdin
        assert process.stdout
        alarm = Timer(deadline_s, _kill, [process])
        alarm.start()
        try:
            process.stdin.close()
            for line in process.stdout:
                tail.append(line.rstrip())
                show(tail[-1])
            process.wait()
        except BaseException:
            _kill(process)
            raise
        finally:
            alarm.cancel()
    if process.returncode != 0:
        raise BenchError(
            f"`{' '.join(command)}` ended with {process.returncode} after {time.monotonic() - started:.0f} s "
            f"(limit {deadline_s:.0f} s). Its last lines:\n" + "\n".join(tail)
        )


class Peer:
    """A peer's script as a process, alive inside the `with` block and gone after it.

    One line of JSON goes in, one comes out. A peer that dies or is late gives an error with the tail of its stderr, and
    is not to be asked again.
    """

    def __init__(self, name: str, python: Path, script: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._command = [str(python), "-I", str(script)]
        self._environment = environment or {}
        self._unanswered = False

    def __enter__(self) -> Self:
        self._child = Child(self._command, {**os.environ, **self._environment}, show_stderr=False)
        return self

    def ask(self, question: Mapping[str, Any], *, awaiting: str, deadline_s: float) -> dict[str, Any]:
        """The peer's answer; `awaiting` is what the error calls it if it does not come."""
        self._unanswered = True
        deadline = time.monotonic() + deadline_s
        try:
            self._child.send([question], deadline_s)
            answer = self._child.receive(deadline - time.monotonic(), MAX_ANSWER)
        except LateError:
            raise WaitError(
                f"peer {self.name}: {awaiting} did not come within {deadline_s:g} s{self._said()}"
            ) from None
        except NotJsonError as error:
            answer = error.said
        except ChildError as error:
            raise BenchError(f"peer {self.name} {error} before {awaiting} came{self._said()}") from None
        if not isinstance(answer, dict):
            raise BenchError(f"peer {self.name}: {answer!r:.200} came instead of {awaiting}{self._said()}")
        self._unanswered = False
        return answer

    def __exit__(self, *_: object) -> None:
        self._child.close(0.0 if self._unanswered else EXIT_GRACE_S)

    def _said(self) -> str:
        said = self._child.stderr()[-TAIL_LINES:]
        return ". The last lines it wrote to stderr:\n" + "\n".join(said) if said else "; it wrote nothing to stderr"


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a command as the head of a process group, so that `_kill` takes what it started along."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
