"""What a server gives, to whom, and what it never gives."""

import errno
import io
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest
from rich.console import Console

from shoal.crypto.keys import Key
from shoal.crypto.signed_request import EMPTY, NONCE, Recipient, sign_request
from shoal.shardcast.format.records import MIB
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.child_relays import Children, children_file
from shoal.shardcast.serve.rate_limit import AllowList, Limits, Rates
from shoal.shardcast.serve.relay_tree import walk
from shoal.shardcast.serve.server import Server, serving
from shoal.wait import wait_until
from tests.support.origin_and_relays import Origin, client_of, contents, metric, origin_at, relay_at


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection(server.host, server.port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    with origin_at(tmp_path) as made:
        made.publish(1)
        yield made


def test_a_range_of_a_file_is_given_as_it_is_on_the_disk(origin: Origin) -> None:
    name = origin.publisher.entries[0].name
    data = contents(origin.versions[1])["model.safetensors"]
    status, got = ask(origin.server, f"/{name}/files/model.safetensors", Range=f"bytes=100-{MIB + 99}")
    assert (status, got) == (206, data[100 : MIB + 100])
    assert ask(origin.server, f"/{name}/files/model.safetensors") == (200, data)
    assert ask(origin.server, f"/{name}/files/model.safetensors", "HEAD") == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/.lock",
        "//etc/passwd",
        "/../../etc/passwd",
        "/{name}/",
        "/{name}",
        "/{name}/files/",
        "/{name}/files/../manifest.jsonl",
        "/{name}/files/..%2f..%2f..%2fetc/passwd",
        "/{name}/files/%2e%2e/%2e%2e/head.json",
        "/{name}/files/nothing",
        "/000001-full-0000000000000000/manifest.jsonl",
        "/{name}/files/model.safetensors/x",
    ],
)
def test_nothing_is_listed_and_nothing_outside_is_given(origin: Origin, path: str) -> None:
    status, data = ask(origin.server, path.format(name=origin.publisher.entries[0].name))
    assert status == 404
    assert len(data) < 100


def test_only_get_and_head_are_answered(origin: Origin) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(origin.server, "/head.json", method)[0] == 405


def test_bytes_that_were_not_verified_are_not_given(origin: Origin) -> None:
    with origin.publisher.publish(2) as package, package.file("model.safetensors") as file:
        file.write(b"a" * MIB + b"b" * 10)
        path = f"/{package.folder.name}/files/model.safetensors"
        assert ask(origin.server, path, Range=f"bytes=0-{MIB - 1}")[0] == 206
        assert ask(origin.server, path, Range=f"bytes={MIB}-{MIB + 9}")[0] == 416
        assert ask(origin.server, path)[0] == 416


def test_a_long_poll_answers_as_soon_as_there_is_something_new(origin: Origin) -> None:
    sequence = origin.publisher._sequence
    began = time.monotonic()
    assert ask(origin.server, f"/head.json?after={sequence}&wait=1")[0] == 304
    assert 0.9 < time.monotonic() - began < 30
    assert ask(origin.server, f"/head.json?after={sequence - 1}&wait=9")[0] == 200


def test_a_server_that_stops_answers_those_that_wait(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as waiting:
        with origin_at(tmp_path) as origin:
            origin.publish(1)
            path = f"/head.json?after={origin.publisher._sequence}&wait=9"
            answers = [waiting.submit(ask, origin.server, path) for _ in range(4)]
            watched = origin.server._watch._waiting
            wait_until(lambda: sum(one.count for one in list(watched.values())) == 4, 10, "not all requests wait")
        assert [answer.result(60)[0] for answer in answers] == [304] * 4


def test_a_wait_is_bounded_by_the_server(tmp_path: Path) -> None:
    with origin_at(tmp_path, Limits(wait_s=1)) as origin:
        began = time.monotonic()
        assert ask(origin.server, f"/head.json?after={origin.publisher._sequence}&wait=9999")[0] == 304
        assert time.monotonic() - began < 30


def test_one_address_cannot_ask_without_end(tmp_path: Path) -> None:
    with origin_at(tmp_path, Limits(requests_per_s=1, burst=5)) as origin:
        answers = [ask(origin.server, "/head.json")[0] for _ in range(40)]  # the bucket fills meanwhile
        assert answers[:5] == [200] * 5
        assert 429 in answers[5:]


def test_a_bucket_fills_again_and_is_each_addresses_own() -> None:
    rates = Rates(per_s=2, burst=3)
    assert [rates.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert rates.take("b", 0.0)
    assert rates.take("a", 0.6)
    assert not rates.take("a", 0.6)


def signed_by(key: Key, host: str, target: str = "/head.json", at: float | None = None) -> dict[str, str]:
    return sign_request(key, "GET", target, EMPTY, Recipient(host), time.time() if at is None else at)


def test_only_known_nodes_are_answered_where_a_list_says_so(tmp_path: Path) -> None:
    known, unknown = Key(b"\x21" * 32), Key(b"\x22" * 32)
    with origin_at(tmp_path) as origin, serving(Server(origin.store, allow=[known.address])) as server:
        host = f"{server.host}:{server.port}"
        good = signed_by(known, host)
        assert ask(server, "/head.json")[0] == 401
        assert ask(server, "/head.json", **good)[0] == 200
        assert b"used before" in ask(server, "/head.json", **good)[1]
        assert b"not on the list" in ask(server, "/head.json", **signed_by(unknown, host))[1]
        late = ask(server, "/head.json", **signed_by(known, host, at=time.time() - 999))[1]
        assert re.search(rb"(999|10\d\d) s behind", late), "as many seconds later as the request took"
        assert b"signed something else" in ask(server, "/head.json", **signed_by(known, host, "/metrics"))[1]
        assert b"this server is" in ask(server, "/head.json", **signed_by(known, "other:1"))[1]
        for_coordinator = sign_request(known, "GET", "/head.json", EMPTY, Recipient(known.address, "run"), time.time())
        assert b"this server is" in ask(server, "/head.json", **for_coordinator)[1]
        origin.publish(1, mib=0.1)
        client = client_of(tmp_path / "client", server.url)
        client.sources._key = known
        with client:
            assert contents(client.fetch()) == contents(origin.versions[1])


def test_a_signature_of_someone_else_does_not_use_up_a_nonce() -> None:
    known, unknown = Key(b"\x21" * 32), Key(b"\x22" * 32)
    guard = AllowList([known.address])
    good = signed_by(known, "h", "/", at=1000.0)
    forged = signed_by(unknown, "h", "/", at=1000.0) | {NONCE: good[NONCE]}
    assert guard.refusal(forged, "GET", "h", "/", 1000.0)
    assert guard.refusal(good, "GET", "h", "/", 1000.0) is None


def test_metrics_count_what_was_served_and_what_is_here(origin: Origin) -> None:
    name = origin.publisher.entries[0].name
    ask(origin.server, f"/{name}/files/model.safetensors", Range="bytes=0-99")
    ask(origin.server, "/nothing")
    assert metric(origin.server, "bytes_sent_total") == 100
    assert metric(origin.server, "missed_total") == 1
    text = ask(origin.server, "/metrics")[1].decode()
    size = sum(len(data) for data in contents(origin.versions[1]).values())
    assert f'shoal_cast_package_bytes{{package="{name}",whole="true"}} {size}' in text


def test_a_request_that_is_no_http_is_answered_and_forgotten(origin: Origin) -> None:
    with socket.create_connection((origin.server.host, origin.server.port), timeout=10) as sock:
        sock.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.")
    assert ask(origin.server, "/head.json")[0] == 200


def test_the_tree_names_relays_and_clients_and_what_they_have(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path) as origin,
        relay_at(tmp_path / "relay", origin.server.url, name="amsterdam") as relay,
        client_of(tmp_path / "client", relay.url) as client,
    ):
        origin.publish(1)
        client.sources._headers["Shoal-Node"] = "worker-7[red]"
        client.fetch()
        shown = io.StringIO()
        Console(width=200, file=shown).print(walk(origin.server.url))
    lines = shown.getvalue().splitlines()
    assert "origin" in lines[0]
    assert "v1 3.7 MB" in lines[0]
    assert "amsterdam" in lines[1]
    assert "worker-7(red)" in lines[2]


def test_a_visitor_never_sees_the_address_of_whoever_fetches_and_the_operator_does(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, client_of(tmp_path / "client", origin.server.url) as client:
        origin.publish(1)
        client.sources._headers["Shoal-Node"] = "worker-7"
        client.fetch()
        pages = [ask(origin.server, page)[1].decode() for page in ("/tree.json", "/metrics", "/head.json")]
        file = children_file(origin.store.path)
        status, _ = ask(origin.server, f"/../{file.name}")
    (child,) = json.loads(pages[0])["children"]
    assert child["name"] == "worker-7"
    assert sum(child["sent"].values()) > 0
    assert not any("127.0.0.1" in page or "address" in page for page in pages)
    assert status == 404
    assert origin.store.path not in file.parents  # which any web server may serve
    assert [(row["name"], row["address"]) for row in json.loads(file.read_bytes())] == [("worker-7", "127.0.0.1")]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_lack_of_file_descriptors_does_not_stop_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("shoal.shardcast.serve.child_relays.write_whole", fails)
    children = Children(tmp_path / "store")
    children.heard("127.0.0.1", "worker-7", "").sent["000001"] += 1
    children.save()
    monkeypatch.undo()
    children.save()
    assert "worker-7" in children_file(tmp_path / "store").read_text()


def test_a_server_whose_clock_was_set_back_answers_what_is_signed_from_then_on() -> None:
    key, now = Key(bytes([5] * 32)), time.time()
    allowed = AllowList([key.address])

    def asks(at: float) -> str | None:
        headers = sign_request(key, "GET", "/head.json", EMPTY, Recipient("here:80"), at)
        return allowed.refusal(headers, "GET", "here:80", "/head.json", at)

    assert asks(now + 7200) is None
    old = sign_request(key, "GET", "/head.json", EMPTY, Recipient("here:80"), now - 1)
    assert asks(now) is not None  # signed no later than the moment at which the clock was found to be back
    assert asks(now + 0.01) is None
    assert allowed.refusal(old, "GET", "here:80", "/head.json", now + 0.02) is not None


def test_bytes_that_are_not_text_are_refused_like_any_other_signature(tmp_path: Path) -> None:
    server = Server(Store(tmp_path), allow=[Key(bytes([5] * 32)).address])
    with serving(server), socket.create_connection((server.host, server.port), timeout=5) as visitor:
        host = f"{server.host}:{server.port}".encode()
        visitor.sendall(b"GET /head.json HTTP/1.1\r\nHost: " + host + b"\r\nShoal-Signature: \xff\xfe\r\n\r\n")
        assert b" 401 " in visitor.recv(4096).split(b"\r\n")[0]
