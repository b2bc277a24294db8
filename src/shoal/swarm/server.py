"""Serves the coordinator's API: uvicorn, with an end to connections that never say what they want."""

import signal
import socket
import threading
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

END_S = 30.0


class Patient(HttpToolsProtocol):
    """A connection that must have made a whole request head a while after it began; uvicorn alone waits for ever."""

    pause_s = PAUSE_S

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(self.pause_s, self._look)

    def _look(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


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
    protocol: Any = type("Patient", (Patient,), {"pause_s": pause_s})
    config = uvicorn.Config(
        make_app(coordinator, pause_s),
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=2,
        lifespan="on",
    )
    return uvicorn.Server(config)


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
