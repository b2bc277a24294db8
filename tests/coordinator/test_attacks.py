"""Attacks on the API: each gets a 4xx with a reason, and nothing changes but that a nonce is used."""

import asyncio
import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, select

from shoal.coordinator.db.schema import metadata
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import BODY, SIGNATURE, Recipient, Signed, sign_request
from shoal.protocol.refusal import Refusal
from tests.support.coordinator_in_process import (
    COORDINATOR,
    HERE,
    ORIGIN,
    TRAINER,
    VALIDATOR,
    World,
    good_file,
    key_of,
    world_at,
)

A, B = key_of("a"), key_of("b")


def state_of(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """All that the database holds, but for nonces, when somebody was heard last, and what the ledger is told."""
    passing = {"nonces", "facts", "outbox", "ledger", "seen", "state", "since"}

    def rows(db: Connection, table: Table) -> list[tuple[Any, ...]]:
        lasting = [column for column in table.c if column.name not in passing]
        return sorted((tuple(row) for row in db.execute(select(*lasting))), key=repr)

    def read(db: Connection) -> dict[str, list[tuple[Any, ...]]]:
        return {table.name: rows(db, table) for table in metadata.sorted_tables if table.name not in passing}

    return world.database.ask(read)


def refused(answer: httpx2.Response, status: int, words: str) -> None:
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert set(answer.json()) == {"error", "reason"}


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("busy")
    with world_at(path, f"sqlite:///{path / 'state.db'}") as world:
        world.announce()
        world.hand_in("a", world.take("a"))
        world.take("a")
        world.take("b")
        _ = world.validator
        yield world


@pytest.fixture
def busy(run_of_two: World) -> Iterator[World]:
    """A run with a file handed in by `a`, and open leases of `a` and `b`. No attack changes it."""
    before = state_of(run_of_two)
    yield run_of_two
    assert state_of(run_of_two) == before
    assert len(list((run_of_two.path / "uploads").rglob("*.parquet"))) == 1


def test_every_route_that_changes_anything_must_be_signed(busy: World) -> None:
    paths = httpx2.get(f"{busy.url}/v1/openapi.json").json()["paths"]
    open_routes = []
    for path, methods in paths.items():
        for method in methods:
            target = path.replace("{step}", "0").replace("{submission}", "0").replace("{number}", "0")
            target = target.replace("{address}", A.address)
            query = "?signal=1&first=0&last=0&before=0&after=0"
            answer = busy.send(method.upper(), target + query, b"{}", {"Content-Type": "application/json"})
            if answer.status_code in (200, 404):  # the ledger has no account of a node without an accepted file
                open_routes.append((method, path))
            else:
                assert answer.status_code in (401, 422), (method, path, answer.text)
    assert all(method == "get" for method, _ in open_routes)
    assert {path for _, path in open_routes} == {
        "/v1/card",
        "/v1/status",
        "/v1/versions",
        "/v1/steps/{step}",
        "/v1/submissions/{step}/{submission}",
        "/v1/evidence/{address}",
        "/v1/rates",
        "/v1/ledger/entries",
        "/v1/ledger/nodes/{address}",
    }


def signed(world: World, key: Key, method: str, target: str, data: bytes) -> dict[str, str]:
    digest = hashlib.sha256(data).hexdigest()
    return sign_request(key, method, target, digest, HERE, world.clock())


def test_a_request_that_is_sent_again_is_refused_also_after_a_restart(small_world: World) -> None:
    world = small_world
    world.announce()
    data = json.dumps({"version": 0}).encode()
    world.store(A)
    headers = signed(world, A, "POST", "/v1/leases", data) | {"Content-Type": "application/json"}
    assert world.send("POST", "/v1/leases", data, headers).status_code == 200
    refused(world.send("POST", "/v1/leases", data, headers), 401, "was used before; sign each request again")
    world.stop()
    world.start()
    refused(world.send("POST", "/v1/leases", data, headers), 401, "was used before; sign each request again")


def test_a_request_about_versions_that_comes_after_a_later_one_changes_nothing(small_world: World) -> None:
    """A trainer takes versions back, hears no answer, does it again and goes on; then the first request arrives."""
    world = small_world
    world.announce()
    late = signed(world, TRAINER, "DELETE", "/v1/versions?after=0", b"")
    time.sleep(0.01)
    assert world.trainer._link.retract(0) == []
    world.trainer._link.announce(1, "cd" * 32)
    refused(world.send("DELETE", "/v1/versions?after=0", b"", late), 401, "sign it again")
    early = json.dumps({"root": "cd" * 32}).encode()
    headers = signed(world, TRAINER, "PUT", "/v1/versions/1", early) | {"Content-Type": "application/json"}
    time.sleep(0.01)
    assert world.trainer._link.retract(0) == [1]
    refused(world.send("PUT", "/v1/versions/1", early, headers), 401, "sign it again")
    world.trainer._link.announce(1, "ef" * 32)


def test_a_version_beyond_the_end_of_the_run_is_refused(small_world: World) -> None:
    """Each step before it would be noted for the ledger, also without files: half a billion rows fill any machine."""
    world = small_world
    world.announce()
    steps = world.coordinator.terms.steps
    for number in (steps + 1, 484_895_953):
        body = json.dumps({"root": "cd" * 32}).encode()
        headers = signed(world, TRAINER, "PUT", f"/v1/versions/{number}", body) | {"Content-Type": "application/json"}
        answer = world.send("PUT", f"/v1/versions/{number}", body, headers)
        refused(answer, 422, f"version {number}: this run ends with version {steps}")
    assert world.send("GET", "/v1/versions", b"", {}).json()["newest"] == 0


def test_of_a_hundred_copies_of_a_request_at_once_one_is_taken(small_world: World) -> None:
    small_world.store(A)
    data = json.dumps({"doing": "x"}).encode()
    headers = signed(small_world, A, "POST", "/v1/heartbeats", data) | {"Content-Type": "application/json"}
    answers: list[int] = []

    def send() -> None:
        answers.extend(small_world.send("POST", "/v1/heartbeats", data, headers).status_code for _ in range(10))

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] + [401] * 99


def test_a_forged_signature_is_refused(busy: World) -> None:
    data = b'{"version":0}'
    headers = signed(busy, A, "POST", "/v1/leases", data) | {"Content-Type": "application/json"}
    for place in (2, 40, 70, 129):
        digits = list(headers[SIGNATURE])
        digits[place + 1] = "0" if digits[place + 1] != "0" else "1"
        answer = busy.send("POST", "/v1/leases", data, headers | {SIGNATURE: "".join(digits)})
        assert answer.status_code in (401, 403), answer.text
    refused(busy.send("POST", "/v1/leases", b'{"version":1}', headers), 400, "is not the hash of the 13 bytes sent")
    elsewhere = signed(busy, A, "POST", "/v1/leases", b"{}") | {"Content-Type": "application/json"}
    refused(busy.send("POST", "/v1/heartbeats", b"{}", elsewhere), 403, "has not joined this run")


def test_old_and_early_requests_are_refused_with_the_difference(busy: World) -> None:
    late = busy.request(A, "POST", "/v1/heartbeats", {}, at=busy.clock() - 90)
    refused(late, 401, " s behind this server's")
    assert re.search(r"your clock is 9\d s", late.text), "as many seconds later as the request took"
    early = busy.request(A, "POST", "/v1/heartbeats", {}, at=busy.clock() + 3600)
    refused(early, 401, " s ahead of this server's")
    assert re.search(r"your clock is 3[56]\d\d s", early.text)


def test_a_request_for_somebody_else_is_refused(busy: World) -> None:
    answer = busy.request(A, "POST", "/v1/heartbeats", {}, to=Recipient(TRAINER.address, "test"))
    refused(answer, 401, f"this server is {COORDINATOR.address}")


def test_who_has_not_joined_gets_nothing(busy: World) -> None:
    stranger = key_of("stranger")
    for method, target, body in (
        ("POST", "/v1/leases", {"version": 0}),
        ("POST", "/v1/heartbeats", {}),
        ("GET", "/v1/files?first=0&last=2", None),
        ("GET", "/v1/files/0/0", None),
    ):
        refused(busy.request(stranger, method, target, body), 403, "has not joined this run")


def test_nobody_becomes_trainer_or_validator_by_saying_so(busy: World) -> None:
    for key, role in ((A, "trainer"), (A, "validator"), (VALIDATOR, "trainer"), (ORIGIN, "validator")):
        answer = busy.request(key, "POST", "/v1/nodes", {"role": role})
        assert answer.status_code == 403, (role, answer.text)


def test_a_worker_may_do_nothing_that_is_the_trainers_or_a_validators(busy: World) -> None:
    verdict = {"accept": True, "sha256": "0" * 64, "audited": True}
    for method, target, body in (
        ("GET", "/v1/files?first=0&last=2", None),
        ("GET", "/v1/files/0/0", None),
        ("DELETE", "/v1/files?before=9", None),
        ("PUT", "/v1/verdicts/0/0", verdict),
        ("PUT", f"/v1/bans/{B.address}", {"reason": "rival"}),
        ("PUT", "/v1/versions/1", {"root": "ab" * 32}),
        ("DELETE", "/v1/versions?after=0", None),
    ):
        answer = busy.request(A, method, target, body)
        assert answer.status_code == 403, (method, target, answer.text)
    others: list[tuple[Key, str, str, Any]] = [
        (VALIDATOR, "PUT", "/v1/versions/1", {"root": "ab" * 32}),
        (VALIDATOR, "DELETE", "/v1/files?before=9", None),
        (VALIDATOR, "POST", "/v1/leases", {"version": 0}),
        (TRAINER, "PUT", f"/v1/bans/{B.address}", {"reason": "x"}),
        (VALIDATOR, "PUT", f"/v1/bans/{TRAINER.address}", {"reason": "x"}),
    ]
    for key, method, target, payload in others:
        assert busy.request(key, method, target, payload).status_code == 403, target


def test_an_accept_verdict_on_other_bytes_is_refused(busy: World) -> None:
    for sha256 in ("0" * 64, ""):
        verdict = {"accept": True, "sha256": sha256, "audited": False}
        refused(busy.request(VALIDATOR, "PUT", "/v1/verdicts/0/0", verdict), 409, "the verdict is on")
        missing = busy.request(VALIDATOR, "PUT", "/v1/verdicts/7/0", verdict)
        refused(missing, 404, "no file was submitted under that number")


def test_another_nodes_lease_is_of_no_use(busy: World) -> None:
    lease = busy.take("b")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    refused(busy.request(A, "PUT", target, content=good_file(lease)), 403, f"was issued to {B.address}")


def test_a_lease_that_was_never_issued_is_of_no_use(busy: World) -> None:
    refused(busy.request(A, "PUT", "/v1/files/5/77?signal=0", content=b"x"), 404, "was never issued")


def test_a_lease_is_good_for_one_file(busy: World) -> None:
    answer = busy.request(A, "PUT", "/v1/files/0/0?signal=2", content=b"another file")
    refused(answer, 409, "a lease is good for one file")


def test_a_second_copy_of_an_upload_that_ends_after_its_node_was_banned_takes_nothing_away(small_world: World) -> None:
    world = small_world
    world.announce()
    lease = world.take("a")
    data = world.hand_in("a", lease)
    (path,) = (world.path / "uploads").rglob("*.parquet")
    world.validator.ban(A.address, "cheated elsewhere")
    sha256 = hashlib.sha256(data).hexdigest()
    by, place = Signed(A.address, "0" * 32, time.time(), sha256), (lease.step, lease.submission)
    with pytest.raises(Refusal, match="gets no more leases"):
        asyncio.run(world.coordinator.take_upload(by, *place, sha256, len(data), 2, time.time()))
    assert path.read_bytes() == data


def test_bytes_that_are_not_what_was_signed_are_not_kept(busy: World) -> None:
    lease = busy.take("a")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    headers = signed(busy, A, "PUT", target, b"what was signed")
    refused(busy.send("PUT", target, b"what was sent", headers), 400, "is not the hash of the 13 bytes sent")
    headers = signed(busy, A, "PUT", target, b"x") | {BODY: hashlib.sha256(b"y").hexdigest()}
    refused(busy.send("PUT", target, b"y", headers), 403, "has not joined")


def test_more_groups_with_signal_than_the_lease_has_cannot_be(busy: World) -> None:
    lease = busy.take("a")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=3"
    refused(busy.request(A, "PUT", target, content=b"x"), 422, "is for 2 groups, so 3 groups with signal are too many")


def raw(world: World, data: bytes, *more: bytes, pause_s: float = 0.0, wait_s: float = 60.0) -> bytes:
    """What the server answers to bytes on a connection of its own."""
    host, port = world.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        with suppress(ConnectionError):  # who is refused half-way hears why
            connection.sendall(data)
            for piece in more:
                time.sleep(pause_s)
                connection.sendall(piece)
        with suppress(TimeoutError, ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
    return answer


def head(world: World, key: Key, target: str, data: bytes, *extra: str) -> bytes:
    headers = signed(world, key, "PUT", target, data)
    lines = [f"PUT {target} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in headers.items()), *extra, "", ""]
    return "\r\n".join(lines).encode()


def test_who_hangs_up_in_the_middle_of_a_body_is_no_error_of_ours(
    busy: World, caplog: pytest.LogCaptureFixture
) -> None:
    lease = busy.take("a")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    heartbeat = head(busy, A, "/v1/heartbeats", b"x" * 100, "Content-Length: 100").replace(b"PUT", b"POST", 1)
    host, port = busy.url.removeprefix("http://").split(":")
    for start in (head(busy, A, target, b"x" * 100, "Content-Length: 100"), heartbeat):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(start + b"x")
            time.sleep(0.2)
    time.sleep(0.2)
    assert "Exception" not in caplog.text


def test_a_body_that_is_too_large_is_cut_off_by_what_it_says_or_while_it_comes(busy: World) -> None:
    lease = busy.take("a")
    most = busy.coordinator.terms.max_upload
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    said = raw(busy, head(busy, A, target, b"x", f"Content-Length: {most + 1}"), b"y" * 10)
    assert said.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in said.lower()
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    chunks = [chunk] * (most // 65536 + 2)
    unsaid = raw(busy, head(busy, A, target, b"x", "Transfer-Encoding: chunked"), *chunks)
    assert unsaid.startswith(b"HTTP/1.1 413")
    assert b"bytes that are accepted here" in unsaid
    answer = busy.request(A, "POST", "/v1/heartbeats", {"doing": "x" * 100_000})
    refused(answer, 413, "at most 65536 are accepted here")


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", pause_s=0.3) as world:
        world.announce()
        yield world


def test_a_body_that_comes_too_slowly_is_cut_off(hasty: World) -> None:
    lease = hasty.take("a")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    began = time.monotonic()
    stalled = raw(hasty, head(hasty, A, target, b"x" * 100, "Content-Length: 100"), b"x", wait_s=30.0)
    assert stalled.startswith(b"HTTP/1.1 408")
    assert b"bytes came in" in stalled
    drops = [b"x"] * 20
    dripped = raw(hasty, head(hasty, A, target, b"x" * 100, "Content-Length: 100"), *drops, pause_s=0.1, wait_s=30.0)
    assert b"408" in dripped or dripped == b""  # the answer is lost to those who go on sending
    assert time.monotonic() - began < 25
    assert hasty.trainer.count(lease.step).seen == 0
    hasty.stop()
    hasty.pause_s = 10.0  # an honest node may be without a core for a while
    hasty.start()
    hasty.hand_in("a", lease)  # the lease is not spent


def test_a_coordinator_that_is_busy_does_not_blame_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world_at(
        tmp_path, f"sqlite:///{tmp_path / 'state.db'}", pause_s=4.0
    ) as world:  # longer than this process may be without a core
        world.announce()
        lease = world.take("a")
        may_upload = world.coordinator.may_upload

        async def busy(*request: Any) -> Any:
            await asyncio.sleep(1.5 * world.pause_s)
            return await may_upload(*request)

        monkeypatch.setattr(world.coordinator, "may_upload", busy)
        world.hand_in("a", lease)
        assert world.trainer.count(lease.step).seen == 2


def test_a_connection_that_says_nothing_is_closed(hasty: World) -> None:
    for said in (b"", b"GET /v1/card HTT", b"GET /v1/card HTTP/1.1\r\nHost: x\r\nA: "):
        began = time.monotonic()
        raw(hasty, said, wait_s=60.0)
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files/../../etc/passwd",
        "/v1/files/%2e%2e/%2e%2e?signal=1",
        "/v1/files/..%2f..%2fstate.db/0?signal=1",
        "/v1/files/0/-1?signal=1",
        "/v1/files/0/99999999999999999999999?signal=1",
        "/v1/files/٠/0?signal=1",
        "/v1/files/0x0/0?signal=1",
        "/v1/files/1e3/0?signal=1",
        "/v1/files/0/0%00?signal=1",
        "/v1/files/0/0/?signal=1",
        "//v1/files/0/0?signal=1",
        "/v1/files/0/0?signal=-1",
        "/v1/files/0/0?signal=nan",
        "/v1/files/0/0?signal=1&signal=x",
        "/v1/files/0/0",
        "/",
    ],
)
def test_paths_that_are_none_lead_nowhere(busy: World, target: str) -> None:
    encoded = target.encode("utf-8").decode("latin-1")
    headers = signed(busy, A, "PUT", encoded, b"x")
    lines = [f"PUT {encoded} HTTP/1.1", "Host: x", "Content-Length: 1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    answer = raw(busy, "\r\n".join([*lines, "", "x"]).encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 4"), answer


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/nodes", {"role": "king"}),
        ("/v1/nodes", {"role": "worker", "url": "file:///etc/passwd"}),
        ("/v1/nodes", {"role": "worker", "name": "a\u0000b"}),
        ("/v1/nodes", {"role": "worker", "name": "\ud800"}),
        ("/v1/nodes", {"role": "worker", "name": "x" * 65}),
        ("/v1/nodes", {"role": "worker", "node": "0x" + "0" * 40}),
        ("/v1/leases", {"version": -1}),
        ("/v1/leases", {"version": 2**63}),
        ("/v1/leases", {"version": True}),
        ("/v1/leases", {"version": "0"}),
        ("/v1/leases", {"version": 0.5}),
        ("/v1/leases", {"version": float("nan")}),
        ("/v1/leases", {"version": 0, "holding": [[0, 0]] * 65}),
        ("/v1/leases", {"version": 0, "holding": [[0]]}),
        ("/v1/leases", [{"version": 0}]),
        ("/v1/leases", None),
        ("/v1/heartbeats", {"doing": "\u001b[2J"}),
        ("/v1/heartbeats", {"version": 10**12}),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(busy: World, target: str, body: Any) -> None:
    refused(busy.request(A, "POST", target, body), 422, "body")


def test_json_that_is_none_or_too_deep_is_refused(busy: World) -> None:
    for data in (b"{", b"[" * 30000, b'{"version": 1e999}', b"\xff\xfe", b"null", b'{"a":' * 9000):
        headers = signed(busy, A, "POST", "/v1/leases", data) | {"Content-Type": "application/json"}
        answer = busy.send("POST", "/v1/leases", data, headers)
        assert 400 <= answer.status_code < 500, (data[:10], answer.text)
        assert answer.json()["reason"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["POST /v1/leases", "POST /v1/heartbeats", "PUT /v1/verdicts/0/9", "PUT /v1/bans/0x0"]),
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["version", "accept", "finding", "x"]), inner),
        max_leaves=8,
    ).map(lambda tree: json.dumps(tree).encode()),
)
def test_whatever_comes_as_a_body_is_answered_with_less_than_500(run_of_two: World, route: str, data: bytes) -> None:
    method, target = route.split()
    headers = signed(run_of_two, VALIDATOR, method, target, data) | {"Content-Type": "application/json"}
    answer = run_of_two.send(method, target, data, headers)
    assert answer.status_code == 200 or (400 <= answer.status_code < 500 and answer.json()["reason"])


def test_what_is_no_http_at_all_harms_nobody(busy: World) -> None:
    rng = random.Random(0)
    for _ in range(20):
        raw(busy, rng.randbytes(200) + b"\r\n\r\n", wait_s=0.5)
    assert busy.request(A, "POST", "/v1/heartbeats", {}).status_code == 200


def test_a_run_that_is_full_or_has_a_list_takes_no_strangers(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'state.db'}"
    with world_at(tmp_path, database, swarm={"allow": [A.address]}) as world:
        assert world.request(A, "POST", "/v1/nodes", {"role": "worker"}).status_code == 200
        refused(world.request(B, "POST", "/v1/nodes", {"role": "worker"}), 403, "not on this run's allow-list")
        assert world.request(VALIDATOR, "POST", "/v1/nodes", {"role": "validator"}).status_code == 200
    with world_at(tmp_path, database, swarm={"max_nodes": 2}) as world:
        refused(world.request(B, "POST", "/v1/nodes", {"role": "worker"}), 429, "has 2 nodes, which is the maximum")
        assert world.request(A, "POST", "/v1/nodes", {"role": "worker"}).status_code == 200
