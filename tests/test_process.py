"""Role processes: none is ever left behind, and each is told to run well beside the others."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.process import EXIT_REFUSED, PARENT_PIPE, Child, die_with_parent, set_defaults, stop_all
from tests.support.small_disk import run_on_small_disk

# A role: says that it is ready, then does nothing for a long time.
ROLE = """
import os, sys, time
from pathlib import Path
from shoal.process import die_with_parent
die_with_parent()
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(120)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ROLE
TIDY = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('tidied up', flush=True), sys.exit(0)))\n"
    + ROLE
)

SUPERVISOR = """
import sys, time
from pathlib import Path
from shoal.process import Child
python, folder, role = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
sys.executable = python
children = [Child(name, ["-c", role, str(folder / name)], 1, folder / "log") for name in ("a", "b", "c")]
children[0].process.kill()
children[0].process.wait()
(folder / "a").unlink(missing_ok=True)
children[0].restart()
time.sleep(120)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that runs what follows `-m shoal`, so that small programs can be roles."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def children(python: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    """Children to be ended with the test, whatever it does."""
    monkeypatch.setattr(sys, "executable", str(python))
    started: list[Child] = []
    yield started
    for child in started:
        child.process.kill()
        child.process.wait()


def wait_for(path: Path, seconds: float = 120.0) -> int:
    """The process id in a file, once it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.01)
    raise AssertionError(f"{path.name} did not come within {seconds} s")


def is_gone(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # dead, only nobody has asked for its exit code yet
            return True
        time.sleep(0.01)
    return False


def start(children: list[Child], name: str, code: str, folder: Path) -> Child:
    child = Child(name, ["-c", code, str(folder / name)], 1, folder / "logs" / f"{name}.log")
    children.append(child)
    wait_for(folder / name)
    return child


def test_all_children_end_when_their_supervisor_is_killed(tmp_path: Path, python: Path) -> None:
    arguments = [sys.executable, "-c", SUPERVISOR, str(python), str(tmp_path), ROLE]
    supervisor = subprocess.Popen(arguments)
    try:
        pids = [wait_for(tmp_path / name) for name in ("b", "c", "a")]
        assert not any(is_gone(pid, 0.1) for pid in pids)
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_a_child_whose_supervisor_died_before_it_began_ends_at_once(tmp_path: Path) -> None:
    theirs, ours = os.pipe()
    os.close(ours)
    environment = os.environ | {PARENT_PIPE: str(theirs)}
    child = subprocess.Popen([sys.executable, "-c", ROLE, str(tmp_path / "a")], env=environment, pass_fds=[theirs])
    os.close(theirs)
    assert child.wait(20) == -signal.SIGKILL


def test_without_a_supervisor_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_PIPE, raising=False)
    before = threading.active_count()
    die_with_parent()
    assert threading.active_count() == before


def test_a_childs_own_children_know_nothing_of_the_pipe(tmp_path: Path, children: list[Child]) -> None:
    code = (
        "import os, sys; from pathlib import Path; from shoal.process import PARENT_PIPE, die_with_parent\n"
        "die_with_parent()\n"
        "Path(sys.argv[1]).write_text(str(int(PARENT_PIPE in os.environ)))\n"
    )
    start(children, "a", code, tmp_path)
    assert (tmp_path / "a").read_text() == "0"


def test_a_child_that_ignores_sigterm_is_killed_when_the_grace_is_over(tmp_path: Path, children: list[Child]) -> None:
    for name in ("a", "b", "c"):
        start(children, name, STUBBORN, tmp_path)
    began = time.monotonic()
    stop_all(children, grace_s=6.0)
    assert 6.0 <= time.monotonic() - began < 16.0, "the grace is common to all, not one after the other"
    assert [child.poll() for child in children] == [-signal.SIGKILL] * 3


def test_a_child_may_tidy_up_before_it_ends(tmp_path: Path, children: list[Child]) -> None:
    start(children, "stubborn", STUBBORN, tmp_path)
    tidy = start(children, "tidy", TIDY, tmp_path)
    stop_all(children, grace_s=8.0)
    assert tidy.poll() == 0
    assert "tidied up" in tidy.log.read_text()


def test_stopping_children_that_are_gone_already_is_no_error(tmp_path: Path, children: list[Child]) -> None:
    child = start(children, "a", ROLE, tmp_path)
    child.process.kill()
    child.process.wait()
    stop_all(children, grace_s=0.1)
    assert child.poll() == -signal.SIGKILL


def test_ctrl_c_in_the_terminal_does_not_reach_a_child(tmp_path: Path, children: list[Child]) -> None:
    child = start(children, "a", ROLE, tmp_path)
    assert os.getsid(child.process.pid) != os.getsid(0)


def test_a_restarted_child_is_another_process_with_the_same_log(tmp_path: Path, children: list[Child]) -> None:
    child = start(children, "a", "print('here I am', flush=True)\n" + ROLE, tmp_path)
    first = wait_for(tmp_path / "a")
    child.process.kill()
    child.process.wait()
    (tmp_path / "a").unlink()
    child.restart()
    assert wait_for(tmp_path / "a") != first
    assert child.log.read_text() == "here I am\n" * 2


def test_restarts_leak_no_file_descriptors(tmp_path: Path, children: list[Child]) -> None:
    child = start(children, "a", "import sys; from pathlib import Path; Path(sys.argv[1]).write_text('1')", tmp_path)
    child.process.wait()
    gc.collect()  # what other tests left is not to be closed while we count
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        child.restart()
        child.process.wait()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_child_gets_its_threads_and_the_users_own_settings(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "123")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    keys = ("OMP_NUM_THREADS", "MALLOC_TOP_PAD_", "OMP_WAIT_POLICY")
    code = f"import os; print(*(os.environ[k] for k in {keys}))"
    child = Child("a", ["-c", code], 3, tmp_path / "log")
    children.append(child)
    child.process.wait()
    assert child.log.read_text() == "3 123 PASSIVE\n"


def test_a_child_is_the_shoal_command(tmp_path: Path) -> None:
    child = Child("help", ["status", str(tmp_path / "nowhere")], 1, tmp_path / "log")
    assert child.process.wait(120) == 3, child.log.read_text()
    assert child.log.read_text().startswith("error: ")
    child.close()


def test_defaults_leave_the_users_own_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    set_defaults()
    values = [os.environ[name] for name in ("OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE")]
    assert values == ["ACTIVE", "false", "0"]


def test_a_role_that_gives_up_says_why_to_its_supervisor(tmp_path: Path) -> None:
    child = Child("worker", ["worker", str(tmp_path / "nowhere"), "--join", "http://127.0.0.1:1"], 1, tmp_path / "log")
    assert child.process.wait(120) == EXIT_REFUSED
    assert f"{tmp_path / 'nowhere'}: cannot be read" in child.last_words()
    child.close()
    assert child.last_words() == ""


def test_a_full_disk_hides_no_last_words(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from shoal.process import Child
disk = Path(sys.argv[1])
(disk / "log").touch()
with (disk / "filler").open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
child = Child("worker", ["worker", str(disk / "nowhere"), "--join", "http://127.0.0.1:1"], 1, disk / "log")
print(child.process.wait(60), child.last_words().splitlines()[0], (disk / "log").stat().st_size)
"""
    said = run_on_small_disk(tmp_path / "disk", 64, code).strip()
    assert re.fullmatch(rf"{EXIT_REFUSED} .*nowhere: cannot be read.* 0", said), said


FULL = """
import errno, sys
from shoal import cli
from shoal.errors import StorageError
@cli.app.command()
def fill(known: bool) -> None:
    sys.stdout.write("waits in the buffer")
    if known:
        raise StorageError("weights: the disk is full")
    raise OSError(errno.ENOSPC, "No space left on device", "weights")
cli.main()
"""


@pytest.mark.parametrize("known", ["true", "false"])
def test_a_full_disk_is_no_crash_though_nothing_can_be_written(tmp_path: Path, known: str) -> None:
    command = [sys.executable, "-c", FULL, "fill", known]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered)
        assert result.returncode == EXIT_REFUSED
        assert re.match("error: weights: .*(disk is full|No space left)", result.stderr)
        assert "Traceback" not in result.stderr
        assert subprocess.run(command, stdout=full, stderr=full, env=buffered).returncode == EXIT_REFUSED
