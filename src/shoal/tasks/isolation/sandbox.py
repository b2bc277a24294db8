"""bubblewrap sandbox for programs that answer code tasks: they can compute and nothing else.

A program gets an input and gives an output, and sees neither the machine nor who judges it: bubblewrap puts it into
namespaces of its own (no network, no other process, no file but Python's own, nothing that can be written), a filter
leaves it the few calls to the kernel that computing takes (`seccomp.py`), and limits bound its time, memory and output.
Where bubblewrap is missing, or the kernel lets nobody use it, no program is run at all.
"""

import os
import select
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from shoal.errors import TaskError
from shoal.files import cache_dir
from shoal.priority import pass_on_priority
from shoal.tasks.isolation.seccomp import seccomp_filter

End = Literal["ended", "failed", "late", "wordy"]
HOME = "/python"
# Starting takes a few hundredths of a second; on a busy machine it must not count as the program's own time.
START_S = 1.0
PROBE_S = 20.0
# An argument of a command must be shorter than 128 KiB.
MAX_PROGRAM = 100_000
# How deep a program may call must not hang on how its machine is set up.
STACK = 64 << 20
# A thread takes memory of the kernel's, which no limit counts. The kernel does not hold root to this one.
THREADS = 1024
# First of all the process gives up what it does not need, for good: nothing in there can raise a limit again.
PRELUDE = """
import resource, sys
for limit, value in ((resource.RLIMIT_AS, {memory}), (resource.RLIMIT_CPU, {cpu}), (resource.RLIMIT_NOFILE, 32),
                     (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MEMLOCK, 0),
                     (resource.RLIMIT_STACK, {stack}), (resource.RLIMIT_NPROC, {threads})):
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))
"""
MAIN = """
import types
program = sys.argv.pop()
sys.modules["__main__"] = main = types.ModuleType("__main__")
exec(compile(program, "program.py", "exec"), main.__dict__)
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take."""

    seconds: float = 2.0
    memory: int = 512 << 20
    output: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program put out and how it ended. That it ended well proves nothing."""

    end: End
    output: bytes
    seconds: float


def run_program(program: str, given: bytes, bounds: Bounds, main: str = MAIN) -> Outcome:
    """Runs Python source with `given` as its standard input; `main` is what runs it."""
    try:
        size = len(program.encode())
    except UnicodeEncodeError:
        return Outcome("failed", b"", 0.0)
    if size > MAX_PROGRAM or "\0" in program:
        return Outcome("failed", b"", 0.0)
    if _broker is not None:
        return _broker.run(program, given, bounds, main)
    return _run(find_bubblewrap(), program, given, bounds, main)


class Broker(Protocol):
    """Runs programs for a process that has given up the right to make sandboxes."""

    def run(self, program: str, given: bytes, bounds: Bounds, main: str) -> Outcome: ...


_broker: Broker | None = None


def run_through(broker: Broker) -> None:
    """From now on programs of this process are run by the broker."""
    global _broker
    _broker = broker


@cache
def find_bubblewrap() -> str:
    """The path of a bubblewrap that works here; TaskError, which is a refusal to run anything, if there is none."""
    candidates = [shutil.which("bwrap"), str(cache_dir() / "programs" / "bwrap" / "usr" / "bin" / "bwrap")]
    for path in candidates:
        if path is not None and os.access(path, os.X_OK):
            break
    else:
        raise TaskError(
            "code tasks: bubblewrap is not installed, and untrusted programs run only inside it; install it "
            "(apt-get install bubblewrap) or fetch it into the cache with python -m shoal.tasks.isolation.install"
        )
    outcome = _run(path, "print(6 * 7)", b"", Bounds(seconds=PROBE_S), MAIN)
    if outcome.output != b"42\n":
        raise TaskError(
            f"code tasks: {path} cannot make a sandbox here ({outcome.end}), and untrusted programs run only inside "
            "one. It needs user namespaces: check sysctl user.max_user_namespaces and what the container forbids"
        )
    return path


@cache
def _command(bubblewrap: str) -> tuple[str, ...]:
    """bubblewrap and what it shows: Python, the libraries it is linked to, and a few devices, all read-only."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    command = [bubblewrap, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    command += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        path = Path(folder)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), folder]
        elif path.is_dir():
            command += ["--ro-bind", folder, folder]
    command += ["--ro-bind", os.path.realpath(sys.executable), f"{HOME}/bin/python"]
    command += ["--ro-bind", str(base / "lib" / version), f"{HOME}/lib/{version}"]
    for library in sorted(base.glob(f"lib/lib{version}*.so*")):
        command += ["--ro-bind", str(library), f"{HOME}/lib/{library.name}"]
    for packages in ("site-packages", "dist-packages"):
        if (base / "lib" / version / packages).is_dir():
            command += ["--tmpfs", f"{HOME}/lib/{version}/{packages}"]
            command += ["--remount-ro", f"{HOME}/lib/{version}/{packages}"]
    # No chance: what a program draws must be the same for every judge. Python asks these for seeds, because the
    # filter leaves it nothing else to ask.
    for device, real in (("null", "null"), ("zero", "zero"), ("random", "zero"), ("urandom", "zero")):
        command += ["--dev-bind", f"/dev/{real}", f"/dev/{device}"]
    command += ["--remount-ro", "/", "--chdir", "/", "--clearenv"]
    command += ["--setenv", "LD_LIBRARY_PATH", f"{HOME}/lib", "--setenv", "PYTHONHASHSEED", "0"]
    return tuple(command)


def _run(bubblewrap: str, program: str, given: bytes, bounds: Bounds, main: str) -> Outcome:
    limits = {"memory": bounds.memory, "cpu": int(bounds.seconds) + 2, "stack": STACK, "threads": THREADS}
    prelude = PRELUDE.format(**limits)
    # Not -I, which would not read the seed of hashes; of the environment it is all there is.
    python = [f"{HOME}/bin/python", "-P", "-s", "-B", "-X", "utf8", "-c", prelude + main, program]
    rules, write_rules = os.pipe()
    os.write(write_rules, seccomp_filter())
    os.close(write_rules)
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [*_command(bubblewrap), "--seccomp", str(rules), "--", *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[rules],
            env={},
            start_new_session=True,
            bufsize=0,
        )
    finally:
        os.close(rules)
    with process:
        pass_on_priority(process.pid)
        try:
            end, output = _converse(process, given, began + START_S + bounds.seconds, bounds.output)
        finally:
            process.kill()  # and with it everything in there
    if end == "ended" and process.returncode != 0:
        end = "failed"
    return Outcome(end, output, time.monotonic() - began)


def _converse(process: subprocess.Popen[bytes], given: bytes, deadline: float, max_bytes: int) -> tuple[End, bytes]:
    """Gives the input and takes the output, both at the program's own pace, until it closes its end or goes too far."""
    assert process.stdin is not None
    assert process.stdout is not None
    to, out = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(to, False)
    poll = select.poll()
    poll.register(out, select.POLLIN)
    left = memoryview(given)
    if left:
        poll.register(to, select.POLLOUT)
    else:
        process.stdin.close()
    parts: list[bytes] = []
    size = 0
    while (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remaining * 1000):
            if descriptor == to:
                try:
                    left = left[os.write(to, left[: select.PIPE_BUF]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    poll.unregister(to)
                    process.stdin.close()
                continue
            data = os.read(out, 1 << 16)
            if not data:
                return _ended(process, deadline), b"".join(parts)
            parts.append(data)
            size += len(data)
            if size > max_bytes:
                return "wordy", b""
    return "late", b""


def _ended(process: subprocess.Popen[bytes], deadline: float) -> End:
    """A program that closed its output may still be at work."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "late"
    return "ended"
