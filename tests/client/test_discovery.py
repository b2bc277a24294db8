"""Finding a run and being let in, as commands: what an entry says, where a list may come from, what an invite does.

Coordinators and web servers are real ones on this machine.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.client import run_directory
from shoal.client.run_directory import entry_lines, make_entry, needs_of, open_directory
from shoal.crypto.keys import Key, checksummed
from shoal.errors import SwarmError
from shoal.protocol.run_list import DAY_S, MAX_LIST_BYTES, read_entry, sign_list
from shoal.rundir import RunDir, is_own, key_path, write_run_file
from tests.protocol.test_run_list import PUBLISHER, A, B, entry, signed
from tests.support.command import shoal
from tests.support.coordinator_in_process import COORDINATOR, World, key_of, make_config, world_at

WORKER = key_of("invited")


def run_of(world: World, path: Path, key: Key | None = COORDINATOR) -> RunDir:
    """The directory of a world's run, at home where its coordinator's key is."""
    path.mkdir()
    write_run_file(path, world.config, 0.0)
    if key is not None:
        key.save(key_path(path, "coordinator"))
    return RunDir(path, world.config)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[World]:
    home = tmp_path / "closed"
    home.mkdir()
    with world_at(home, f"sqlite:///{home / 'state.db'}", swarm={"closed": True}) as world:
        yield world


def test_an_entry_tells_what_the_coordinator_answers_and_leads_from_a_list_to_its_run(
    small_world: World, tmp_path: Path
) -> None:
    small_world.announce(2)
    for name in ("a", "b"):
        small_world.store(key_of(name))
    run, out, listing = run_of(small_world, tmp_path / "run"), tmp_path / "entry.json", tmp_path / "runs.json"
    flags = ["--url", f"{small_world.url}/", "--out", str(out), "--about", "spelling backwards", "--days", "3"]
    done = shoal(tmp_path, "runs", "entry", str(run.path), *flags)
    assert done.returncode == 0, done.stderr
    made = read_entry(out.read_bytes(), str(out), int(time.time())).entry
    assert (made.run, made.coordinator, made.url) == ("test", COORDINATOR.address, small_world.url)
    assert (made.nodes, made.version, made.steps) == (2, 2, 20), "trainer and validator do not count"
    assert (made.about, made.invite, made.expires - made.updated) == ("spelling backwards", False, 3 * DAY_S)
    assert done.stdout.rstrip().endswith(f"signed by {COORDINATOR.address}, in {out}")

    done = shoal(tmp_path, "runs", "publish", str(listing), str(out))
    assert done.returncode == 0, done.stderr
    publisher = re.search(r"published by (0x\w{40})", done.stdout)
    assert publisher is not None
    shown = shoal(tmp_path, "runs", "--directory", str(listing)).stdout
    assert f"1 open run(s), published by {publisher[1]}" in shown
    assert f"shoal worker --join {small_world.url}#{COORDINATOR.address}\n" in shown
    assert f"--directory {listing}#{publisher[1].lower()}" in shown, "how to accept lists of this publisher only"
    pinned = shoal(tmp_path, "runs", "--directory", f"{listing}#{A.address}")
    assert (pinned.returncode, pinned.stdout) == (3, "")


def test_no_entry_is_made_of_a_copy_nor_about_another_coordinator(small_world: World, tmp_path: Path) -> None:
    copy = run_of(small_world, tmp_path / "copy", key=None)
    done = shoal(tmp_path, "runs", "entry", str(copy.path), "--url", small_world.url, "--out", str(tmp_path / "x"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "its coordinator's key is not here; run this on the coordinator's machine" in done.stderr
    assert not is_own(copy.path)
    other = run_of(small_world, tmp_path / "other", key=A)
    with pytest.raises(SwarmError, match=COORDINATOR.address):
        make_entry(other, small_world.url, "", 7)
    assert not (tmp_path / "x").exists()


def test_what_a_machine_needs_is_what_the_run_has(tmp_path: Path) -> None:
    run = RunDir(tmp_path, make_config())
    assert needs_of(run) == (f"sequences of {run.config.max_len} tokens",)
    run.base_model.mkdir(parents=True)
    for part in ("a", "b"):
        with (run.base_model / f"{part}.safetensors").open("wb") as file:
            file.truncate(750_000_000)
    tasks = [{"source": "verifiers/some-environment"}]
    audit = {"profiles": ["*/torch/*"]}
    config = make_config(tasks=tasks, model={"dtype": "bfloat16"}, swarm={"closed": True}, audit=audit)
    assert needs_of(RunDir(tmp_path, config)) == (
        "1.5 GB of weights in bfloat16",
        f"sequences of {config.max_len} tokens",
        "profile */torch/*",
        "runs the owner's Python unconfined (--allow-code)",
        "an invite",
    )


def test_a_run_is_shown_on_a_line_per_thing_and_what_it_does_not_say_is_left_out() -> None:
    assert entry_lines(entry(about="", needs=("1 GB", "an invite"), invite=True)) == [
        "",
        "words",
        "  model  tiny",
        "  needs  1 GB; an invite",
        "  at     version 4 of 20, 3 nodes",
        f"  join   shoal worker --join https://host.example:7000#{A.address}+INVITE",
    ]


@dataclass
class Web:
    """A web server on loopback that answers as a test says; it counts what it was asked and could send."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0

    def send(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        handler.wfile.write(data)
        self.sent += len(data)


@contextmanager
def web(answer: Callable[[Web, BaseHTTPRequestHandler], None]) -> Iterator[Web]:
    found = Web(lambda handler: answer(found, handler))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            try:
                found.answer(self)
            except OSError:  # the client has gone away
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def begin(handler: BaseHTTPRequestHandler, code: int = 200, **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()


def test_a_list_comes_from_a_web_server_uncompressed_and_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    now = int(time.time())
    usual = {"updated": now, "expires": now + DAY_S}
    made = sign_list([signed(A, **usual), signed(B, **usual)], PUBLISHER, now, 7).model_dump(mode="json")
    by = {one["entry"]["coordinator"]: one for one in made["list"]["runs"]}
    by[B.address]["signature"] = by[A.address]["signature"]  # not its coordinator's
    whole = made["list"]
    made["signature"] = PUBLISHER.sign(run_list_message(whole))

    def answer(served: Web, handler: BaseHTTPRequestHandler) -> None:
        begin(handler)
        served.send(handler, json.dumps(made).encode())

    with web(answer) as served:
        done = shoal(tmp_path, "runs", "--directory", f"{served.url}/runs.json#{PUBLISHER.address}")
    assert done.returncode == 0, done.stderr
    assert served.asked == ["/runs.json"]
    assert served.headers[0]["accept-encoding"] == "identity"
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"1 open run(s), published by {checksummed(PUBLISHER.address)} at 20")
    assert f"  join   shoal worker --join https://host.example:7000#{A.address}" in lines
    assert lines[-1].startswith("not shown: 1 "), "and no advice to pin a publisher that is pinned"


def run_list_message(tree: dict[str, Any]) -> bytes:
    from shoal.protocol.run_list import RunList

    return RunList.model_validate(tree).message()


def test_plain_http_from_elsewhere_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("it connected")

    monkeypatch.setattr("shoal.client.run_directory.httpx2.Client", connect)
    with pytest.raises(SwarmError, match="plain http, where anybody on the way can leave runs out; give https"):
        open_directory("http://198.51.100.7/runs.json")


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    refused = pytest.raises(SwarmError, match="was answered with 302; is it the right URL")
    with web(lambda _served, handler: begin(handler, 302, Location="/elsewhere")) as served, refused:
        open_directory(f"{served.url}/runs.json")
    assert served.asked == ["/runs.json"]


def test_a_list_without_end_is_cut_off_at_4_mib_while_it_comes() -> None:
    piece = bytes(1 << 16)

    def without_end(served: Web, handler: BaseHTTPRequestHandler) -> None:
        begin(handler)
        while served.sent < 64 << 20:
            served.send(handler, piece)

    with web(without_end) as served, pytest.raises(SwarmError, match=f"sends more than {MAX_LIST_BYTES} bytes"):
        open_directory(f"{served.url}/runs.json")
    assert MAX_LIST_BYTES == 4 << 20
    assert served.sent < 32 << 20, "what the buffers of two sockets take, and no more"


def test_a_server_that_sends_a_byte_now_and_then_does_not_hold_anybody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "FETCH_S", 0.2)

    def drop_by_drop(served: Web, handler: BaseHTTPRequestHandler) -> None:
        begin(handler)
        while served.sent < 1000:
            served.send(handler, b" ")
            time.sleep(0.02)

    with web(drop_by_drop) as served, pytest.raises(SwarmError, match=r"sent \d+ bytes in 0 s; try again later"):
        open_directory(f"{served.url}/runs.json")
    assert served.sent < 1000


def test_nothing_to_list_and_flags_that_do_not_belong_together_are_said(tmp_path: Path) -> None:
    assert "runs: give --directory URL, the address of a list" in shoal(tmp_path, "runs").stderr
    done = shoal(tmp_path, "runs", "--directory", "x", "entry", str(tmp_path))
    assert "runs entry: does not take --directory; it is for listing" in done.stderr


def test_an_invite_admits_its_node_and_the_list_says_who_used_it(closed: World, tmp_path: Path) -> None:
    run = str(run_of(closed, tmp_path / "run").path)
    assert shoal(tmp_path, "invite", run, "--url", closed.url, "--list").stdout == "no invite was used or revoked\n"
    done = shoal(tmp_path, "invite", run, "--url", closed.url, "-n", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith(f"shoal worker --join {closed.url}#{COORDINATOR.address}+") for line in lines] == [True] * 2
    first, second = (line.rpartition("+")[2] for line in lines)

    revoked = shoal(tmp_path, "invite", run, "--url", closed.url, "--revoke", second)
    assert revoked.stdout == f"invite {second[:8]}: revoked\n"
    again = shoal(tmp_path, "invite", run, "--url", closed.url, "--revoke", second.partition(".")[0])
    assert again.stdout == f"invite {second[:8]}: was revoked before\n"

    def joins(token: str) -> int:
        return closed.request(WORKER, "POST", "/v1/nodes", {"role": "worker", "invite": token}).status_code

    assert joins(second) != 200, "it was revoked"
    assert joins(first) == 200
    listed = shoal(tmp_path, "invite", run, "--url", closed.url, "--list").stdout.splitlines()
    told = {line.split()[0]: line for line in listed}
    assert set(told) == {first[:8], second[:8]}
    assert told[first[:8]].endswith(f"UTC  used by {checksummed(WORKER.address)}")
    assert told[second[:8]].endswith("UTC  revoked")
    used = shoal(tmp_path, "invite", run, "--url", closed.url, "--revoke", first)
    assert used.returncode == 3, used.stdout


def test_what_is_no_invite_a_copy_and_an_open_run_are_refused_by_name(
    closed: World, small_world: World, tmp_path: Path
) -> None:
    at_home = str(run_of(closed, tmp_path / "run").path)
    done = shoal(tmp_path, "invite", at_home, "--url", closed.url, "--revoke", "rubbish")
    assert "--revoke rubbish: give the invite, or its first part: 32 hexadecimal digits" in done.stderr
    copy = run_of(closed, tmp_path / "copy", key=None).path
    for flags in ([], ["--list"], ["--revoke", "ab" * 16]):
        done = shoal(tmp_path, "invite", str(copy), "--url", closed.url, *flags)
        assert (done.returncode, done.stdout) == (3, "")
        assert "its coordinator's key is not here; run this on the coordinator's machine" in done.stderr
    assert not is_own(copy)
    opened = run_of(small_world, tmp_path / "open").path
    done = shoal(tmp_path, "invite", str(opened), "--url", small_world.url)
    assert "is open to anyone, so an invite would admit nobody else" in done.stderr
