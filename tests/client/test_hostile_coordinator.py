"""A coordinator that means harm to the machines lent to it, or something on the way that plays one."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.lend import lend
from shoal.cli.options import JoinFlags
from shoal.client.client import CoordinatorClient
from shoal.client.rollout_store import SwarmStore
from shoal.client.run_status import print_why
from shoal.crypto.keys import Key
from shoal.errors import RolloutError, ShoalError, SwarmError, WaitError
from shoal.protocol.lease import Lease
from shoal.protocol.run_card import SCHEMA, Card, SignedCard
from shoal.protocol.signed_lease import SignedLease
from shoal.roles.session import Heartbeat, join_run
from shoal.tasks.package_versions import packages_of
from shoal.telemetry.status import StatusFile
from shoal.wait import wait_until
from tests.support.coordinator_in_process import COORDINATOR, ORIGIN, key_of, make_config
from tests.support.servers.http_answers import answering

A = key_of("a")
ORDER = {"do": "work", "reason": "", "state": "healthy", "version": 0, "next_s": 10.0, "accepted": 0, "rejected": 0}
ORDER |= {"refused": "", "card": "", "time": 0.0}
ORDERED = json.dumps(ORDER).encode()
Answer = Callable[[BaseHTTPRequestHandler], bytes | None]


def card_of(**changes: Any) -> bytes:
    """A card that a coordinator signs, whatever it says."""
    config = make_config().model_dump(mode="json", exclude_none=True, exclude={"swarm", "cheaters"})
    fields = {
        "schema_version": SCHEMA,
        "run": "test",
        "coordinator": COORDINATOR.address,
        "origin": ORIGIN.address,
        "relays": ("http://127.0.0.1:1",),
        "max_upload": 1 << 20,
        "heartbeat_s": 10.0,
        "direct_uploads": False,
        "packages": packages_of(make_config().tasks),
        "config": config | changes.pop("config", {}),
    }
    card = Card.model_construct(**{**fields, **changes})
    return SignedCard.model_construct(card=card, signature=COORDINATOR.sign(card.message())).model_dump_json().encode()


@contextmanager
def coordinator(answers: dict[str, bytes | Answer]) -> Iterator[str]:
    """Answers by path; a function writes what it likes and gives the body, if that is not its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = answers[self.path.split("?")[0]]
            body = answer if isinstance(answer, bytes) else answer(self)
            if body is not None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with answering(Handler) as url:
        yield url


def without_end(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(1000):
            handler.wfile.write(bytes(1 << 20))
    except OSError:
        return


def unfolding(handler: BaseHTTPRequestHandler) -> None:
    body = gzip.compress(bytes(64 << 20))
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.parametrize("path", ["/v1/card", "/v1/heartbeats", "/v1/status"])
def test_an_answer_without_end_is_given_up(path: str) -> None:
    with (
        coordinator({"/v1/card": card_of(), "/v1/heartbeats": ORDERED, path: without_end}) as url,
        CoordinatorClient(url, A, wait_s=0.2) as link,
        pytest.raises(SwarmError, match="an answer of more than"),
    ):
        _ = link.card, link.heartbeat(), link.get("/v1/status")


def test_an_answer_that_unfolds_is_not_unfolded() -> None:
    with (
        coordinator({"/v1/card": card_of(), "/v1/status": unfolding}) as url,
        CoordinatorClient(url, A, wait_s=0.2) as link,
        pytest.raises(WaitError, match="which is not valid JSON"),
    ):
        link.get("/v1/status")


def test_a_page_that_wants_a_login_first_is_waited_out() -> None:
    """Networks of hotels answer for everybody, with a page of their own."""
    asked: list[str] = []

    def portal(_: BaseHTTPRequestHandler) -> bytes:
        asked.append("")
        return b"<html>\x1b[2J please log in</html>" if len(asked) < 3 else json.dumps(ORDER).encode()

    waited: list[str] = []
    with (
        coordinator({"/v1/card": card_of(), "/v1/heartbeats": portal}) as url,
        CoordinatorClient(url, A, wait_s=20, on_wait=lambda what, _: waited.append(what)) as link,
    ):
        assert link.heartbeat()["do"] == "work"
    assert len(waited) == 2
    assert "\x1b" not in "".join(waited)


@pytest.mark.parametrize(
    "order", [{}, {"do": "work"}, ORDER | {"next_s": "soon"}, ORDER | {"do": "format"}, ORDER | {"card": None}]
)
def test_an_order_that_is_none_ends_no_heart(order: dict[str, Any], tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []

    def beat(_: BaseHTTPRequestHandler) -> bytes:
        answers.append(order)
        return json.dumps(order).encode()

    status = StatusFile(tmp_path / "role.json", "role")
    with (
        coordinator({"/v1/card": card_of(heartbeat_s=0.1), "/v1/heartbeats": beat}) as url,
        CoordinatorClient(url, A) as link,
        Heartbeat(link, status, lambda _: None),
    ):
        wait_until(lambda: len(answers) >= 3, 20, "there were no three heartbeats", pause_s=0.01)


def test_an_order_does_not_make_a_node_hammer_or_sleep(tmp_path: Path) -> None:
    times: list[float] = []

    def beat(_: BaseHTTPRequestHandler) -> bytes:
        times.append(time.monotonic())
        return json.dumps(ORDER | {"next_s": -1.0}).encode()

    status, began = StatusFile(tmp_path / "role.json", "role"), time.monotonic()
    with (
        coordinator({"/v1/card": card_of(), "/v1/heartbeats": beat}) as url,
        CoordinatorClient(url, A) as link,
        Heartbeat(link, status, lambda _: None),
    ):
        time.sleep(1.0)
        wait_until(lambda: len(times) >= 2, 5, "it sleeps", pause_s=0.01)
    assert len(times) <= 2 + 10 * (time.monotonic() - began)


@pytest.mark.parametrize("run", ["../../outside", "/outside", "a/b", "\x1b[2J", "", "x" * 300])
def test_a_runs_name_leads_nowhere_else(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for changes in ({"run": run}, {"run": run, "config": {"name": run}}):
        with coordinator({"/v1/card": card_of(**changes)}) as url, pytest.raises(ShoalError) as caught:
            join_run(url, tmp_path / "key", None, 1.0, lambda _: None, code=False)
        assert "\x1b" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"key", "state"}
    assert not (tmp_path / "state").exists()


def test_a_run_that_asks_for_more_than_anybody_reads_is_not_joined(tmp_path: Path) -> None:
    huge = {"workers": {"groups_per_submission": 1 << 30}}
    with coordinator({"/v1/card": card_of(config=huge)}) as url, pytest.raises(SwarmError, match="do not join it"):
        join_run(url, tmp_path / "key", tmp_path / "home", 1.0, lambda _: None, code=False)


@pytest.mark.parametrize(
    "changes",
    [{"groups": 10**9}, {"groups": 0}, {"step": 10**6, "version": 10**6}, {"version": -1}, {"version": 1}, {"step": 3}],
)
def test_a_lease_for_more_than_the_config_says_is_not_worked_on(changes: dict[str, Any], tmp_path: Path) -> None:
    lease = replace(Lease("test", A.address, 0, 0, 0, 2, 1, time.time() + 60), **changes)
    signed = SignedLease.sign(lease, "ab" * 32, COORDINATOR).to_tree()
    answers: dict[str, bytes | Answer] = {"/v1/card": card_of(), "/v1/leases": json.dumps({"lease": signed}).encode()}
    with (
        coordinator(answers) as url,
        CoordinatorClient(url, A, wait_s=1) as link,
        pytest.raises(RolloutError, match=r"a file of this run has|a run of .* steps takes"),
    ):
        SwarmStore(link, tmp_path).lease(A.address, 0)


def test_what_a_machine_inside_answers_is_told_to_nobody() -> None:
    """An object store's URL is the coordinator's to give, and may lead to a router at home."""

    def secret(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(404)
        handler.send_header("Content-Length", "6")
        handler.end_headers()
        handler.wfile.write(b"secret")

    waited: list[str] = []
    with coordinator({"/inside": secret}) as inside:
        where = json.dumps({"url": f"{inside}/inside", "done": False}).encode()
        answers: dict[str, bytes | Answer] = {"/v1/card": card_of(), "/v1/uploads/0/0": where}
        with coordinator(answers) as url, pytest.raises(WaitError) as caught:
            CoordinatorClient(url, A, wait_s=0.2, on_wait=lambda what, _: waited.append(what)).put_direct(
                "/v1/uploads/0/0", b"x", 0
            )
    assert "the object store answered 404" in waited[0]
    assert "secret" not in "".join(waited) + str(caught.value)


def test_what_a_coordinator_says_is_shown_without_terminal_escapes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    console = Console(record=True, width=200)
    verdict = {"accept": False, "audited": True, "finding": None, "evidence": "\x1b[2J\x9b1m"}
    told = {"step": 0, "submission": 0, "node": A.address, "sha256": "", "received": 0.0, "verdict": verdict}
    print_why(told | {"judge": Key(bytes([9]) * 32).address}, console)
    with coordinator({"/v1/card": card_of()}) as url:
        _, options = lend("worker", None, JoinFlags(url, tmp_path / "key"), console)
    options.say("told to stop: \x1b]0;owned\x07")
    shown = console.export_text()
    assert "told to stop" in shown
    assert not {"\x1b", "\x9b", "\x07"} & set(shown)
