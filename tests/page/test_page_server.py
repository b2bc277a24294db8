"""The page beside a run: restarted some times, given up then, and never a reason for anything else to end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from shoal.roles.page_server import FILE, PageServer
from shoal.roles.side_process import MAX_RESTARTS, SideProcess
from shoal.rundir import RunDir
from tests.support.coordinator_in_process import make_config
from tests.support.large_run import write_large_run


def test_a_page_that_keeps_ending_is_given_up_and_nothing_else_is(tmp_path: Path) -> None:
    page = PageServer(RunDir(tmp_path / "there-is-nothing", make_config()))
    page.arguments = ["status"]  # ends at once, with an error
    page.start()
    said = None
    deadline = time.monotonic() + 120
    while said is None and time.monotonic() < deadline:
        said = page.look()
        time.sleep(0.02)
    assert said is not None
    assert said.startswith(f"the page ended {MAX_RESTARTS + 1} times, with code 3, ")
    assert said.endswith("the run goes on without it")
    assert page.look() is None
    page.close()


def test_a_process_that_looks_on_gives_way_before_it_imports_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.priority.NICE", 10)
    beside = SideProcess("page", ["--help"], tmp_path / "log", "the page")
    try:
        for start in (beside.start, beside.look):
            start()
            assert beside.child is not None
            assert os.getpriority(os.PRIO_PROCESS, beside.child.process.pid) >= 10
            beside.child.process.kill()
            beside.child.process.wait()
    finally:
        beside.close()


def test_a_page_has_the_port_of_the_last_time_so_that_an_open_page_finds_it_again(tmp_path: Path) -> None:
    first = PageServer(RunDir(tmp_path, make_config()))
    assert PageServer(RunDir(tmp_path, make_config())).url == first.url
    (tmp_path / FILE).write_text("rubbish")
    assert PageServer(RunDir(tmp_path, make_config())).url.startswith("http://127.0.0.1:")


def test_nobody_is_sent_to_a_page_that_it_cannot_reach(tmp_path: Path) -> None:
    def page(**swarm: object) -> PageServer:
        return PageServer(RunDir(tmp_path, make_config(swarm=swarm)))

    assert page().reaches_others
    assert not page(host="0.0.0.0").reaches_others
    public = page(host="0.0.0.0", pages="public", public="run.example.org", page_port=7001)
    assert (public.url, public.reaches_others) == ("https://run.example.org:7001/", True)


def test_a_page_that_is_told_to_end_ends_its_streams_first_and_says_nothing(tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=3, node_count=3, samples=16, answer_bytes=100)
    command = [sys.executable, "-m", "shoal", "page", str(run), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        with httpx2.Client(trust_env=False, timeout=60) as client, client.stream("GET", f"{url}events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: news"
            server.send_signal(signal.SIGTERM)
            assert list(lines)[-1] == "", "the stream comes to its end, and is not cut off"
        assert server.wait(60) == 0
        assert server.stdout.read() == ""
    finally:
        server.kill()
        server.wait()
