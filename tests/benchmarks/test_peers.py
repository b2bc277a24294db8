"""Peers for the benchmarks, with small scripts in place of a real one and nothing fetched from a network."""

import fcntl
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers.process import Peer, peer_python
from shoal.errors import BenchError, WaitError
from shoal.files import cache_dir

ECHO = """
import sys
for line in sys.stdin:
    print(line, end="", flush=True)
"""


def peer(folder: Path, program: str, **environment: str) -> Peer:
    script = folder / "script.py"
    script.write_text(program)
    return Peer("fake", Path(sys.executable), script, environment=environment)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("SHOAL_CACHE")
    assert cache_dir() == Path("/b/shoal")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "shoal"


def test_an_environment_is_made_once_and_is_not_ours(tmp_path: Path) -> None:
    python = peer_python("fake", [], cache=tmp_path)
    made = python.parent.parent.stat().st_mtime_ns
    assert peer_python("fake", [], cache=tmp_path) == python
    assert python.parent.parent.stat().st_mtime_ns == made
    script = tmp_path / "where.py"
    script.write_text('import json, sys; input(); print(json.dumps({"prefix": sys.prefix}))')
    with Peer("fake", python, script) as fake:
        assert fake.ask({}, awaiting="its prefix", deadline_s=60)["prefix"] == str(tmp_path / "peers" / "fake")


def test_what_an_interrupted_install_left_is_made_anew(tmp_path: Path) -> None:
    home = peer_python("fake", [], cache=tmp_path).parent.parent
    (home / "complete.json").unlink()
    (home / "half-made").touch()
    peer_python("fake", [], cache=tmp_path)
    assert not (home / "half-made").exists()
    assert (home / "complete.json").exists()


def test_an_environment_with_other_requirements_is_made_anew(tmp_path: Path) -> None:
    home = peer_python("fake", [], cache=tmp_path).parent.parent
    (home / "complete.json").write_text('{"requirements": ["other==1.0"]}')
    (home / "of-the-other").touch()
    peer_python("fake", [], cache=tmp_path)
    assert not (home / "of-the-other").exists()


def test_a_failed_install_shows_what_pip_said_and_leaves_nothing_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # An environment that takes no time to make: its python is ours.
    python, venv = tmp_path / "python", tmp_path / "venv"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    venv.write_text(f"#!/bin/sh\nfor home; do :; done\nmkdir -p $home/bin\ncp {python} $home/bin\n")
    venv.chmod(0o755)
    monkeypatch.setattr("benchmarks.peers.process.sys", SimpleNamespace(executable=str(venv)))
    with pytest.raises(BenchError, match=r"(?s)peer fake could not be installed.*No matching distribution found"):
        peer_python("fake", ["no-such-thing-as-this==9.9"], cache=tmp_path)
    assert not (tmp_path / "peers" / "fake" / "complete.json").exists()


def test_an_install_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"ended with -9 .*limit 0 s"):
        peer_python("fake", [], cache=tmp_path, deadline_s=0.01)


def test_two_processes_never_install_the_same_peer_at_once(tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    with (tmp_path / "peers" / "fake.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BenchError, match="another process is installing it"):
            peer_python("fake", [], cache=tmp_path)


def test_each_question_gets_its_answer(tmp_path: Path) -> None:
    with peer(tmp_path, ECHO) as fake:
        for steps in range(3):
            assert fake.ask({"steps": steps}, awaiting="an echo", deadline_s=60) == {"steps": steps}


def test_a_peer_gets_its_environment_variables(tmp_path: Path) -> None:
    program = 'import json, os; input(); print(json.dumps({"threads": os.environ["THREADS"]}))'
    with peer(tmp_path, program, THREADS="1") as fake:
        assert fake.ask({}, awaiting="its threads", deadline_s=60) == {"threads": "1"}


def test_a_peer_that_dies_is_named_with_the_end_of_its_stderr(tmp_path: Path) -> None:
    program = """
import sys
for line in range(1000):
    print("line", line, file=sys.stderr)
input()
raise RuntimeError("out of fish")
"""
    with (
        peer(tmp_path, program) as fake,
        pytest.raises(
            BenchError, match=r"(?s)peer fake ended with code 1 before the warm-up came.*out of fish$"
        ) as caught,
    ):
        fake.ask({}, awaiting="the warm-up", deadline_s=60)
    assert "line 0\n" not in str(caught.value)


def test_a_peer_that_never_answers_hits_the_deadline(tmp_path: Path) -> None:
    program = 'import sys, time; print("thinking", file=sys.stderr, flush=True); time.sleep(600)'
    started = time.monotonic()
    with (
        peer(tmp_path, program) as fake,
        pytest.raises(WaitError, match=r"(?s)peer fake: the timing of 5 steps did not come within 10 s.*thinking"),
    ):
        fake.ask({"steps": 5}, awaiting="the timing of 5 steps", deadline_s=10)
    assert time.monotonic() - started < 40


def test_a_peer_that_never_reads_hits_the_deadline_too(tmp_path: Path) -> None:
    more_than_a_pipe_holds = "x" * 2**20
    with peer(tmp_path, "import time; time.sleep(600)") as fake, pytest.raises(WaitError, match="the warm-up"):
        fake.ask({"prompts": more_than_a_pipe_holds}, awaiting="the warm-up", deadline_s=1)


@pytest.mark.parametrize(
    ("answer", "said"), [("ready", "b'ready' came instead of the warm"), ("[1]", "[1] came instead of the warm-up")]
)
def test_an_answer_that_is_not_an_object_is_shown(tmp_path: Path, answer: str, said: str) -> None:
    with (
        peer(tmp_path, f"input(); print({answer!r})") as fake,
        pytest.raises(BenchError, match=re.escape(said)),
    ):
        fake.ask({}, awaiting="the warm-up", deadline_s=60)


def test_a_peer_may_tidy_up_at_the_end_of_its_input(tmp_path: Path) -> None:
    tidied = tmp_path / "tidied"
    with peer(tmp_path, f"{ECHO}\nopen({str(tidied)!r}, 'w')") as fake:
        fake.ask({}, awaiting="an echo", deadline_s=60)
    assert tidied.exists()


def test_a_peer_and_what_it_started_are_gone_after_the_block(tmp_path: Path) -> None:
    program = """
import json, os, subprocess, sys, time
input()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"pids": [os.getpid(), child.pid]}), flush=True)
time.sleep(600)
"""
    with peer(tmp_path, program) as fake:
        pids = fake.ask({}, awaiting="its pids", deadline_s=60)["pids"]
        assert all(is_running(pid) for pid in pids)
        with pytest.raises(WaitError):
            fake.ask({}, awaiting="nothing", deadline_s=0.1)
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in pids)
