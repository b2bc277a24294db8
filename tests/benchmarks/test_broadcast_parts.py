"""The parts of the broadcast benchmark: links keep their speed, all CPU is counted, missing programs are named."""

import shutil
import subprocess
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks import ROOT
from benchmarks.common.cpu_usage import cpu_below
from benchmarks.peers.process import Peer
from benchmarks.weights.broadcast_sides import Nginx
from shoal.errors import BenchError
from shoal.files import cache_dir
from shoal.tasks.isolation import install
from shoal.wait import wait_until
from tests.support.servers.programs import PROGRAMS, find_program
from tests.support.servers.running import free_port

LINK = ROOT / "benchmarks" / "peers" / "link.py"


@pytest.fixture
def served(tmp_path: Path) -> "tuple[int, bytes]":
    """The port of a web server with one file, and its bytes."""
    data = bytes(range(256)) * 4096
    (tmp_path / "data.bin").write_bytes(data)

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port, data


def link(peer: Peer, to: int, rate: float | None) -> int:
    return int(peer.ask({"to": to, "rate": rate}, awaiting="the link", deadline_s=10)["port"])


def get(port: int) -> bytes:
    with urlopen(f"http://127.0.0.1:{port}/data.bin", timeout=30) as answer:
        return bytes(answer.read())


def test_a_link_passes_every_byte_at_its_own_speed_however_many_connections_share_it(served: tuple[int, bytes]) -> None:
    to, data = served
    with Peer("link", Path(sys.executable), LINK) as peer:
        port = link(peer, to, 2e6)
        got: list[bytes] = []
        began = time.monotonic()
        threads = [threading.Thread(target=lambda: got.append(get(port))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        counted = peer.ask({"count": port, "beyond": len(data)}, awaiting="the count", deadline_s=60)
    assert got == [data, data]
    assert 2 * len(data) / 2e6 * 0.95 < took < 2 * len(data) / 2e6 + 20.0
    assert 2 * len(data) < counted["down"] < 2 * len(data) + 4096
    # Half of the bytes have taken half of the time, or more where a machine stands still.
    assert began + 0.8 * len(data) / 2e6 < counted["at"] < began + took


def test_a_link_without_a_rate_counts_and_does_not_slow(served: tuple[int, bytes]) -> None:
    to, data = served
    with Peer("link", Path(sys.executable), LINK) as peer:
        port = link(peer, to, None)
        began = time.monotonic()
        assert get(port) == data
        assert time.monotonic() - began < 20.0
        never = peer.ask({"count": port, "beyond": 1 << 40}, awaiting="the count", deadline_s=60)
    assert never["at"] is None


def test_cpu_of_children_and_of_theirs_counts_whether_they_have_ended_or_not() -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    nested = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spin!r}])\n"
    before = cpu_below()
    subprocess.run([sys.executable, "-c", nested], check=True)
    assert 0.25 < cpu_below() - before < 3.0  # it is counted in hundredths
    before = cpu_below()
    with subprocess.Popen([sys.executable, "-c", f"{spin}input()"], stdin=subprocess.PIPE) as child:
        wait_until(lambda: cpu_below() - before >= 0.25, 20, "the processor time was not counted", pause_s=0.05)
        assert child.poll() is None


def test_a_program_on_the_path_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "nginx"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("nginx", tmp_path / "cache") == own
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_fetched_is_said_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(install, "SYSTEM", str(tmp_path))
    with pytest.raises(BenchError, match="nginx is not on PATH, and without apt-get it cannot be fetched; install it"):
        find_program("nginx", tmp_path / "cache")
    assert not (tmp_path / "cache" / "programs" / "nginx").exists()


def test_a_package_that_does_not_hold_its_program_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "SYSTEM", "")
    monkeypatch.setitem(PROGRAMS, "nginx", (PROGRAMS["nginx"][0], lambda *_: tmp_path / "nginx.deb"))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(BenchError, match=r"nginx\.deb holds no usr/sbin/nginx"):
        find_program("nginx", tmp_path / "cache")
    assert not (tmp_path / "cache" / "programs" / "nginx").exists()


@pytest.mark.parametrize("kind", ["pass", "cache"])
def test_nginx_sends_a_file_to_all_clients(tmp_path: Path, kind: str) -> None:
    try:
        side = Nginx("pass" if kind == "pass" else "cache", cache_dir())
    except BenchError as error:
        pytest.skip(str(error))
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "swarm").mkdir()
    with side.swarm(tmp_path / "swarm", 2) as send:
        files = send(data)
    assert [file.read_bytes() == data.read_bytes() for file in files] == [True, True]


def test_ports_that_are_given_out_are_free() -> None:
    assert len({free_port() for _ in range(8)}) > 1
    assert set(PROGRAMS) >= {"nginx", "b3sum", "curl", "wget"}
