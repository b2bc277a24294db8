"""The coordinator's HTTP server: uvicorn with connection limits per network and slowloris protection."""

import asyncio
import functools
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.coordinator.coordinator import Coordinator
from shoal.coordinator.http.api import make_app
from shoal.coordinator.http.body_limits import PAUSE_S
from shoal.coordinator.http.rate_limit import neighbours_of, network_of
from shoal.crypto.handshake import Handshake
from shoal.errors import SwarmError

END_S = 30.0
MAX_HEAD = 1 << 16
# More than a thousand nodes behind one router have, with a line for heartbeats each.
MAX_CONNECTIONS = 8192
SPARE_FILES = 256  # for the database, uploads and the rest


class Slots:
    """So many connections in all, of which one network has at most half.

    When all are taken, the network that has most gives its oldest one up for a network that has fewer: somebody with
    addresses in a few networks leaves room for everybody else. A network is an IPv4 /24 or an IPv6 /48.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._held: dict[str, dict[object, asyncio.Transport]] = {}
        self._networks: dict[object, str] = {}

    def enter(self, connection: object, transport: asyncio.Transport) -> bool:
        scope = {"client": transport.get_extra_info("peername")}
        network = self._networks[connection] = neighbours_of(scope) or network_of(scope)
        held = self._held.setdefault(network, {})
        held[connection] = transport
        if len(held) > self._max_connections // 2:
            return False
        if len(self._networks) <= self._max_connections:
            return True
        crowd = max(self._held.values(), key=len)
        if len(crowd) <= len(held):
            return False
        oldest, cut = next(iter(crowd.items()))
        self.leave(oldest)
        cut.abort()
        return True

    def leave(self, connection: object) -> None:
        network = self._networks.pop(connection, None)
        if network is None:  # it was cut before
            return
        del self._held[network][connection]
        if not self._held[network]:
            del self._held[network]


class Patient(HttpToolsProtocol):
    """A connection that gets so much memory and time, and no more; uvicorn alone sets no bounds to either.

    A request head has `MAX_HEAD` bytes and `pause_s` to come, the first as well as those after it, and a client
    that does not read its answers for as long is cut off.
    """

    pause_s = PAUSE_S
    slots: Slots
    below: asyncio.Transport | None = None
    """What carries the connection, if it is TLS."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._unread = 0  # bytes that have led to nothing yet
        self._idle_since: float | None = self.loop.time()  # since when a head is awaited
        self._stuck = 0  # bytes that the other side had not taken at the last look
        if not self.slots.enter(self, transport):
            transport.abort()
            return
        self.loop.call_later(self.pause_s / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > MAX_HEAD + len(data):
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
        waits = self._waiting()
        late = self._idle_since is not None and self.loop.time() - self._idle_since >= self.pause_s
        if late or (self._stuck and waits >= self._stuck):
            self.pipeline.clear()
            self.transport.abort()
            return
        self._stuck = waits
        self.loop.call_later(self.pause_s / 2 if self._idle_since is not None else self.pause_s, self._look)

    def _waiting(self) -> int:
        """Bytes that the other side has not taken yet; of a TLS connection those below it too."""
        waits = self.transport.get_write_buffer_size()
        return waits + (self.below.get_write_buffer_size() if self.below is not None else 0)


def bind(
    host: str, port: int, who: str = "coordinator", remedy: str = "change swarm.host or swarm.port"
) -> socket.socket:
    """A listening socket, so that its port is known and is ours before anything else begins.

    `who` listens, and what to do if it cannot (`remedy`), are for the error.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not switch Nagle's algorithm off, and every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError, UnicodeError) as error:  # the last for what cannot be a host name
        listener.close()
        raise SwarmError(f"{who} {host}:{port}: cannot listen ({error}); {remedy}") from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def server_of(
    coordinator: Coordinator,
    pause_s: float = PAUSE_S,
    context: ssl.SSLContext | None = None,
    page: str | None = None,
) -> uvicorn.Server:
    """The server of a coordinator; with a context it speaks TLS."""
    return uvicorn_server(make_app(coordinator, pause_s, page), _max_connections(), pause_s, context)


def uvicorn_server(
    app: Any, max_connections: int, pause_s: float = PAUSE_S, context: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """A server of any application, with our limits on connections, request heads and slow readers."""
    slots = Slots(max_connections)
    protocol: Any = type("Patient", (Patient,), {"pause_s": pause_s, "slots": slots})

    def over_tls(below: asyncio.Transport, **options: Any) -> Patient:
        made: Patient = protocol(**options)
        made.below = below
        return made

    def secure(**options: Any) -> Handshake:
        assert context is not None
        return Handshake(context, functools.partial(over_tls, **options), slots, pause_s)

    config = uvicorn.Config(
        app,
        http=cast("Any", secure) if context else protocol,
        # uvloop reads before a new connection can be paused, so that the beginning of a handshake would get lost.
        loop="asyncio" if context else "auto",
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


def _max_connections() -> int:
    """The limit of open files of this process, less some for files that are not connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(2, min(MAX_CONNECTIONS, soft - SPARE_FILES))


def serve(
    coordinator: Coordinator,
    listener: socket.socket,
    started: Callable[[], None],
    context: ssl.SSLContext | None = None,
    page: str | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM."""
    server = server_of(coordinator, context=context, page=page)

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # Uvicorn raises what it caught once more when it is done, which must not end us before the database is closed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    started()
    server.run(sockets=[listener])


@contextmanager
def serving(
    coordinator: Coordinator, port: int = 0, pause_s: float = PAUSE_S, context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The coordinator at work in a thread of this process; gives its URL."""
    listener = bind("127.0.0.1", port)
    server = server_of(coordinator, pause_s, context)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield url_of(listener, tls=context is not None)
    finally:
        server.should_exit = True
        thread.join(END_S)
        listener.close()
