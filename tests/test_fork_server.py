"""Roles that are forked: commands like any others, which nobody leaves behind and a killed fork server leaves alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.fork_server import ForkServer, ForkServerError, can_fork
from shoal.process import EXIT_REFUSED, Child, role_environment, stop_all
from tests.support.until import until
from tests.test_process import is_gone, wait_for

pytestmark = pytest.mark.skipif(not can_fork(), reason="roles are not forked on this machine")

# A module that is imported once, by the fork server, and gives the command line roles to test with.
ROLES = """
import os, signal, sys, time
from pathlib import Path
from shoal.cli import app

IMPORTED_BY = os.getpid()

@app.command()
def nap(file: Path) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(120)

@app.command()
def end(code: int) -> None:
    import atexit
    atexit.register(lambda: print("tidied up"))
    print(IMPORTED_BY != os.getpid(), os.environ["OMP_NUM_THREADS"], os.getsid(0) == os.getpid())
    sys.exit(code)

@app.command()
def crash() -> None:
    raise ValueError("as it says")
"""
SUPERVISOR = """
import sys, time
from pathlib import Path
from shoal.fork_server import ForkServer
from shoal.process import Child, role_environment
folder = Path(sys.argv[1])
server = ForkServer(["roles_to_test_with"], role_environment(1), folder / "server.log")
children = [Child(n, ["nap", str(folder / n)], 1, folder / "log", fork_server=server) for n in ("a", "b")]
time.sleep(120)
"""


@pytest.fixture
def roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "roles_to_test_with.py").write_text(ROLES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))


@pytest.fixture
def server(tmp_path: Path, roles: None) -> Iterator[ForkServer]:
    server = ForkServer(["no_such_module", "roles_to_test_with"], role_environment(1), tmp_path / "server.log")
    yield server
    server.close()


def test_a_forked_role_is_the_command_with_its_threads_its_log_and_its_exit_code(
    tmp_path: Path, server: ForkServer
) -> None:
    codes = [0, 3, 77]
    children = [
        Child(f"{code}", ["end", str(code)], code + 1, tmp_path / f"{code}.log", fork_server=server) for code in codes
    ]
    assert [child.process.wait(60) for child in children] == codes
    logs = [child.log.read_text() for child in children]
    assert logs == [f"True {code + 1} True\ntidied up\n" for code in codes]
    stop_all(children)


def test_a_forked_role_that_crashes_or_is_killed_says_so_and_can_be_started_again(
    tmp_path: Path, server: ForkServer
) -> None:
    crashed = Child("crash", ["crash"], 1, tmp_path / "crash.log", fork_server=server)
    napping = Child("nap", ["nap", str(tmp_path / "a")], 1, tmp_path / "nap.log", fork_server=server)
    pid = wait_for(tmp_path / "a")
    assert pid == napping.process.pid
    assert napping.poll() is None
    os.kill(pid, signal.SIGKILL)
    assert napping.process.wait(20) == -signal.SIGKILL
    assert crashed.process.wait(20) == 1
    assert "ValueError: as it says" in crashed.log.read_text()
    (tmp_path / "a").unlink()
    napping.restart()
    assert wait_for(tmp_path / "a") not in (pid, server.process.pid)
    stop_all([crashed, napping])
    assert napping.poll() == -signal.SIGTERM


def test_a_forked_role_that_gives_up_says_why_to_its_supervisor(tmp_path: Path, server: ForkServer) -> None:
    child = Child("status", ["status", str(tmp_path / "nowhere")], 1, tmp_path / "log", fork_server=server)
    assert child.process.wait(60) == EXIT_REFUSED
    assert str(tmp_path / "nowhere") in child.last_words()
    stop_all([child])


def test_roles_outlive_a_killed_fork_server_and_their_end_is_still_seen(tmp_path: Path, server: ForkServer) -> None:
    children = [Child(n, ["nap", str(tmp_path / n)], 1, tmp_path / "log", fork_server=server) for n in ("a", "b")]
    pids = [wait_for(tmp_path / name) for name in ("a", "b")]
    server.process.kill()
    server.process.wait()
    assert not any(is_gone(pid, 0.2) for pid in pids)
    assert [child.poll() for child in children] == [None, None]
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: children[0].poll() is not None, 10)
    assert children[1].poll() is None
    children[0].restart()  # by itself now: the command is not there, for nobody imports the module
    assert children[0].process.wait(60) == 2
    stop_all(children)
    assert is_gone(pids[1])


def test_forked_roles_and_their_fork_server_end_with_a_killed_supervisor(tmp_path: Path, roles: None) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path)])
    try:
        pids = [wait_for(tmp_path / name) for name in ("a", "b")]
        parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != supervisor.pid
    finally:
        supervisor.kill()
        supervisor.wait()
    assert [pid for pid in [*pids, parent] if not is_gone(pid)] == []


def test_a_fork_server_in_the_middle_of_its_imports_is_ended_at_once_and_starts_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(120)")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    server = ForkServer(["slow_to_import"], role_environment(1) | {"PYTHONPATH": path}, tmp_path / "server.log")
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 20
    child = Child("status", ["status", str(tmp_path / "nowhere")], 1, tmp_path / "log", fork_server=server)
    assert isinstance(child.process, subprocess.Popen)
    assert child.process.wait(60) == EXIT_REFUSED
    stop_all([child])


def test_a_fork_server_that_does_not_answer_is_ended_and_forks_nothing_later(
    tmp_path: Path, roles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_imported.py").write_text("import time; time.sleep(120)")
    monkeypatch.setattr("shoal.fork_server.START_S", 0.2)
    server = ForkServer(["never_imported"], role_environment(1), tmp_path / "server.log")
    with (tmp_path / "log").open("ab") as log:
        for _ in range(2):
            with pytest.raises(ForkServerError, match="fork server: "):
                server.start(["nap", str(tmp_path / "a")], {}, log.fileno(), {})
    assert server.process.wait(10) == -signal.SIGKILL
    server.close()
    assert not (tmp_path / "a").exists()


def test_where_there_is_a_gpu_nothing_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.fork_server.GPU_DEVICES", (str(tmp_path),))
    assert not can_fork()
