"""OpenAI's chat endpoint for the harnesses of this process, on loopback: a key names the episode that a request is of.

A standard-library server with a thread per connection: its clients are a few programs on this machine, and each of
their requests waits for the policy.
"""

import json
import re
import secrets
import select
import socket
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shoal.openai_api.errors import ApiError
from shoal.openai_api.responses import DONE, Envelope, Piece, Usage, event, model_entry
from shoal.tasks.environments.harness.chat_request import ChatRequest, parse_request
from shoal.tasks.environments.harness.exchange import Exchange, Reply

MODEL = "policy"
MAX_BODY = 4 << 20
READ_S = 30.0
CHAT, MODELS = "/chat/completions", "/models"
# The key of an episode may be a part of the address, for harnesses whose API key is not ours to set.
PATH = re.compile(r"(?:/([0-9a-f]{32}))?/v1(/[a-z/]+)")
LOOPBACK = ("127.0.0.1", "localhost")


class Endpoint:
    """A server on a free port of 127.0.0.1. It knows an episode by its key as long as somebody holds its exchange."""

    def __init__(self) -> None:
        self._exchanges: weakref.WeakValueDictionary[str, Exchange] = weakref.WeakValueDictionary()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.find = self.find
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, name="harness endpoint", daemon=True).start()

    def open(self) -> tuple[str, Exchange]:
        """A new episode and the key to it."""
        key, exchange = secrets.token_hex(16), Exchange()
        self._exchanges[key] = exchange
        return key, exchange

    def find(self, key: str) -> Exchange:
        exchange = self._exchanges.get(key)
        if exchange is None:
            raise ApiError(401, "API key: of no open episode; send Authorization: Bearer KEY", code="no_key")
        return exchange

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    find: Any


class Handler(BaseHTTPRequestHandler):
    """One connection of a harness."""

    protocol_version = "HTTP/1.1"
    timeout = READ_S
    server: Server

    def do_POST(self) -> None:
        self._serve(CHAT)

    def do_GET(self) -> None:
        self._serve(MODELS)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """A harness's requests are its own affair."""

    def _serve(self, path: str) -> None:
        try:
            kind, data, status = *self._answer(path), 200
        except ApiError as error:
            kind, data, status = "application/json", json.dumps(error.body).encode(), error.status
            self.close_connection = True  # the rest of a body that is refused is not read
        try:
            self._send(status, kind, data)
        except ConnectionError:  # the harness did not wait for it
            self.close_connection = True

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, path: str) -> tuple[str, bytes]:
        """Content type and body of the response."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in LOOPBACK:
            raise ApiError(421, f"host {host[:80]!r}: this endpoint answers on loopback only; ask it as 127.0.0.1")
        asks = PATH.fullmatch(self.path)
        if asks is None or asks[2] != path:
            raise ApiError(404, f"{self.command} {self.path[:80]}: this endpoint has no such path", code="no_endpoint")
        key = asks[1] or self.headers.get("Authorization", "").removeprefix("Bearer ")
        exchange: Exchange = self.server.find(key)
        if path == MODELS:
            entry = model_entry(MODEL, 0, 0, "shoal")
            return "application/json", json.dumps({"object": "list", "data": [entry]}).encode()
        asked = parse_request(self._body())
        # OpenAI's clients number their attempts: 0 is a new request and nothing else.
        repeated = self.headers.get("x-stainless-retry-count") != "0"
        reply = exchange.ask(asked.said, asked.tool_text, may_repeat=repeated, is_there=self._is_there)
        if asked.stream:
            return "text/event-stream", streamed(asked, reply)
        return "application/json", json.dumps(whole(asked, reply), allow_nan=False).encode()

    def _is_there(self) -> bool:
        """Whether the client has not closed its connection."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return not poll.poll(0) or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _body(self) -> bytes:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                415, f"content-type {kind[:80]!r}: must be application/json", code="unsupported_content_type"
            )
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise ApiError(413, f"body: of {length[:20]!r} bytes, 0 to {MAX_BODY} are accepted", code="body_too_large")
        return self.rfile.read(int(length))


def whole(asked: ChatRequest, reply: Reply) -> dict[str, Any]:
    """The response to a request that is not streamed."""
    usage = Usage(*reply.tokens) if reply.tokens is not None else None
    found = _envelope(reply).whole([_piece(reply)], usage or Usage(0, 0))
    return found | ({} if usage else {"usage": None}) | _unused(asked)


def streamed(asked: ChatRequest, reply: Reply) -> bytes:
    """The same as server-sent events. The reply is there when it begins, so it comes as one piece."""
    envelope = _envelope(reply)
    events = [envelope.role(0), envelope.chunk(_piece(reply)) | _unused(asked)]
    if asked.stream_options.include_usage and reply.tokens is not None:
        events.append(envelope.usage(Usage(*reply.tokens)))
    return b"".join(map(event, events)) + DONE


def _envelope(reply: Reply) -> Envelope:
    """Nothing of the time or of chance: played again, an episode must give a harness the same responses."""
    return Envelope("chat", f"chatcmpl-{reply.number}", MODEL, "", created=0)


def _piece(reply: Reply) -> Piece:
    calls = [
        {"index": number, "id": call.id, "type": "function", "function": _function(call.name, call.arguments)}
        for number, call in enumerate(reply.message.calls)
    ]
    return Piece(0, reply.message.text, "tool_calls" if calls else "stop", calls=calls)


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}


def _unused(asked: ChatRequest) -> dict[str, Any]:
    return {"unused_parameters": list(asked.unused)} if asked.unused else {}
