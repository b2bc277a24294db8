"""Relays that lie: each stands before an honest server and twists what it answers."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from urllib.request import urlopen


@dataclass(slots=True)
class Answer:
    """What the honest server said to `path`; a twist changes it, or writes its own to `wire` and sets `sent`."""

    path: str
    asked: dict[str, str]
    status: int
    headers: dict[str, str]
    body: bytes
    wire: BufferedIOBase
    honest: str
    sent: bool = False

    @property
    def is_head(self) -> bool:
        return "/head.json" in self.path

    @property
    def is_manifest(self) -> bool:
        return "/manifest.jsonl" in self.path

    @property
    def is_piece(self) -> bool:
        return "/files/" in self.path and self.status == 206

    def from_start(self) -> bytes:
        """All that the honest server would have said to this path by now."""
        with urlopen(f"{self.honest}{self.path.split('?')[0]}", timeout=10) as answer:
            return bytes(answer.read())

    def write(self, data: bytes) -> None:
        self.sent = True
        self.wire.write(data)
        self.wire.flush()


Twist = Callable[[Answer], None]


@dataclass(slots=True)
class Evil:
    url: str
    asked: list[str] = field(default_factory=list)
    asked_for_pieces: threading.Event = field(default_factory=threading.Event)


def late(evil: Evil) -> Twist:
    """An honest relay that lists nothing before the evil one was asked for pieces: its lies must have been heard."""

    def twist(answer: Answer) -> None:
        if answer.is_manifest:
            evil.asked_for_pieces.wait(10)

    return twist


@contextmanager
def evil_relay(honest: str, twist: Twist, *, waits: bool = True) -> Iterator[Evil]:
    """A relay that answers what `honest` does, after `twist`; one that does not wait ignores queries, as nginx does."""
    to = honest.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            evil.asked.append(self.path)
            if "/files/" in self.path:
                evil.asked_for_pieces.set()
            connection = http.client.HTTPConnection(to, timeout=60)
            try:
                path = self.path if waits else self.path.split("?")[0]
                connection.request("GET", path, headers={"Range": r} if (r := self.headers["Range"]) else {})
                said = connection.getresponse()
                headers = {k: v for k, v in said.getheaders() if k.lower() not in ("content-length", "connection")}
                answer = Answer(self.path, dict(self.headers), said.status, headers, said.read(), self.wfile, honest)
            finally:
                connection.close()
            length = len(answer.body)
            twist(answer)
            if answer.sent:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(length), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            if len(answer.body) != length:
                self.close_connection = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (OSError, http.client.HTTPException):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    evil = Evil(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    try:
        yield evil
    finally:
        server.shutdown()
        server.server_close()
