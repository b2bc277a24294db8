"""What one visitor can do with connections: endless heads, half requests, answers that nobody reads, many at once."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tests.support.coordinator_in_process import World, key_of, world_at
from tests.support.until import until

PAUSE_S = 0.3
GET = b"GET /v1/card HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("hasty")
    with world_at(path, f"sqlite:///{path / 'state.db'}", pause_s=PAUSE_S) as world:
        yield world


def connect(world: World) -> socket.socket:
    host, port = world.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def is_closed(connection: socket.socket, within_s: float) -> bool:
    """Whether the server ends a connection in time, whatever it says before."""
    connection.settimeout(within_s)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def is_answered(ask: Callable[[], httpx2.Response]) -> bool:
    """Whether there is room for a connection: the one before is given up a moment after it was closed."""
    try:
        return ask().status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /v1/card HTTP/1.1\r\nA: ", b"a" * 65536),
        (b"GET /", b"a" * 65536),
        (b"GET /v1/card HTTP/1.1\r\n", b"A: a\r\n" * 10000),
        (b"POST /v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: a\r\n" * 10000),
        (b"POST /v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536),
    ],
    ids=["a header", "a path", "many headers", "trailers", "a chunk's extension"],
)
def test_a_head_without_end_is_cut_off_before_it_fills_memory(small_world: World, begin: bytes, piece: bytes) -> None:
    sent = 0
    with connect(small_world) as connection:
        connection.sendall(begin)
        try:
            while sent < 32 << 20:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    assert sent < 16 << 20


@pytest.mark.parametrize(
    ("rest", "apart"), [(b"GET /v1/card HTT", False), (b"GET /v1/card HTT", True), (b"\r\n", True)]
)
def test_a_second_request_that_never_ends_is_closed_as_the_first_is(hasty: World, rest: bytes, apart: bool) -> None:
    with connect(hasty) as connection:
        connection.sendall(GET if apart else GET + rest)
        if apart:
            time.sleep(0.1)
            connection.sendall(rest)
        assert is_closed(connection, 30 * PAUSE_S)


def test_who_does_not_read_its_answers_is_cut_off(hasty: World) -> None:
    with connect(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            for _ in range(200):
                connection.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
                time.sleep(0.01)
            time.sleep(6 * PAUSE_S)
            for _ in range(100):
                connection.sendall(GET)
                time.sleep(0.1)
        except OSError:
            return
    pytest.fail("a connection whose answers pile up is still there")


def test_one_address_cannot_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.coordinator.http.server.MAX_CONNECTIONS", 8)
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}") as world, ExitStack() as stack:
        opened = [stack.enter_context(connect(world)) for _ in range(6)]
        assert [is_closed(connection, 60) for connection in opened[4:]] == [True] * 2
        assert [is_closed(connection, 0.2) for connection in opened[:4]] == [False] * 4
        opened[0].close()
        until(lambda: is_answered(lambda: httpx2.get(f"{world.url}/v1/card")), 60.0)
        join = partial(world.request, key_of("a"), "POST", "/v1/nodes", {"role": "worker"})
        until(lambda: is_answered(join), 60.0)
