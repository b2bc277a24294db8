"""Serves the coordinator's API: uvicorn, with an end to connections that never say what they want."""

import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.errors import SwarmError
from shoal.swarm.api import make_app
from shoal.swarm.bounds import PAUSE_S
from shoal.swarm.coordinator import Coordinator
from shoal.swarm.guard import network_of

END_S = 30.0
MOST_HEAD = 1 << 16
# More than a thousand nodes behind one router have, with a line for heartbeats each.
MOST_CONNECTIONS = 8192
SPARE_FILES = 256  # for the database, uploads and the rest


class Patient(HttpToolsProtocol):
    """A connection that gets so much memory and time, and no more; uvicorn alone sets no bounds to either.

    A request head has `MOST_HEAD` bytes and `pause_s` to come, the first as well as those after it, and whoever does
    not read its answers for as long is cut off. Of all connections one network has at most half.
    """

    pause_s = PAUSE_S
    most: int
    taken: Counter[str]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._unread = 0  # bytes that have led to nothing yet
        self._idle_since: float | None = self.loop.time()  # since when a head is awaited
        self._stuck = 0  # bytes that the other side had not taken at the last look
        self._network = network_of({"client": self.client})
        self.taken[self._network] += 1
        if self.taken[self._network] > self.most // 2 or self.taken.total() > self.most:
            transport.abort()
            return
        self.loop.call_later(self.pause_s / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self.taken[self._network] -= 1
        if not self.taken[self._network]:
            del self.taken[self._network]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > MOST_HEAD + len(data):
            self.transport.abort()
            return
        super().data_received(data)
        if self._idle_since is None and self.cycle is not None and self.cycle.response_complete:
            self._idle_since = self.loop.time()  # blank lines, which have stopped uvicorn's own clock

    def on_message_begin(self) -> None:
        self._idle_since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unread, self._idle_since = 0, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def resume_writing(self) -> None:
        self._stuck = 0
        super().resume_writing()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        waits = self.transport.get_write_buffer_size()
        late = self._idle_since is not None and self.loop.time() - self._idle_since >= self.pause_s
        if late or (self._stuck and waits >= self._stuck):
            self.pipeline.clear()
            self.transport.abort()
            return
        self._stuck = waits
        self.loop.call_later(self.pause_s / 2 if self._idle_since is not None else self.pause_s, self._look)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that its port is known and is ours before anything else begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not switch Nagle's algorithm off, and every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SwarmError(
            f"coordinator {host}:{port}: cannot listen ({error}); change swarm.host or swarm.port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_of(coordinator: Coordinator, pause_s: float = PAUSE_S) -> uvicorn.Server:
    protocol: Any = type("Patient", (Patient,), {"pause_s": pause_s, "most": _most_connections(), "taken": Counter()})
    config = uvicorn.Config(
        make_app(coordinator, pause_s),
        http=protocol,
        ws="none",
        log_level="error",  # a line for each stranger who speaks no HTTP would fill the disk
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=2,
        lifespan="on",
    )
    return uvicorn.Server(config)


def _most_connections() -> int:
    """As many as the system lets this process have files open; some are left for what is no connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(2, min(MOST_CONNECTIONS, soft - SPARE_FILES))


def serve(coordinator: Coordinator, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM."""
    server = server_of(coordinator)

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # Uvicorn raises what it caught once more when it is done, which must not end us before the database is closed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    started()
    server.run(sockets=[listener])


@contextmanager
def serving(coordinator: Coordinator, port: int = 0, pause_s: float = PAUSE_S) -> Iterator[str]:
    """The coordinator at work in a thread of this process; gives its URL."""
    listener = bind("127.0.0.1", port)
    server = server_of(coordinator, pause_s)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(END_S)
        listener.close()
