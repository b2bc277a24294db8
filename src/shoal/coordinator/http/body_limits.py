"""Request body limits (ASGI middleware): maximum size, and slowloris protection by a minimum rate.

Wrapped around the whole API, so that nothing behind it can forget to look.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect

from shoal.protocol.refusal import Code, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_JSON = 1 << 16
# A body has this long to begin and for every pause; on the whole it comes at least this fast.
PAUSE_S = 10.0
MIN_BYTES_PER_S = 16384.0
# Seconds, after which everybody may ask something again.
RETRY_AFTER = b"1"


class Bounded:
    """Ends requests whose body is larger than it may be or comes too slowly, with a reason."""

    def __init__(self, app: App, max_file: int, is_file: Callable[[Scope], bool], pause_s: float = PAUSE_S) -> None:
        self._app = app
        self._max_file = max_file
        self._is_file = is_file
        self._pause_s = pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._max_file if self._is_file(scope) else MAX_JSON
        waited, came, over = 0.0, 0, False
        answered = False
        refused: Refusal | None = None

        def refuse(code: Code, reason: str) -> Refusal:
            nonlocal refused
            refused = Refusal(code, reason)
            return refused

        async def bounded() -> Message:
            nonlocal waited, came, over
            if over:  # the body has ended; this waits for the end of the connection
                return await receive()
            allowed = self._pause_s + came / MIN_BYTES_PER_S - waited
            began = time.monotonic()  # what the coordinator itself takes is not the sender's fault
            try:
                message = await asyncio.wait_for(receive(), max(0.0, min(self._pause_s, allowed)))
            except TimeoutError:
                raise refuse(
                    "too-slow",
                    f"body: {came} bytes came in {waited + time.monotonic() - began:.0f} s; send it at "
                    f"{MIN_BYTES_PER_S:.0f} bytes/s or more, without pauses of {self._pause_s:.0f} s",
                ) from None
            waited += time.monotonic() - began
            came += len(message.get("body", b""))
            if came > max_bytes:
                raise refuse("too-large", f"body: more than the {max_bytes} bytes that are accepted here")
            over = not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal answered
            if refused is not None and not answered:
                return  # what the API makes of half a body, such as invalid JSON, is not what was wrong
            answered = True
            if message["type"] == "http.response.start" and not over:
                # A sender that is refused half-way does not get to send the rest.
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        try:
            length = dict(scope["headers"]).get(b"content-length", b"0")
            if length.isdigit() and int(length) > max_bytes:
                raise Refusal("too-large", f"body: {int(length)} bytes, at most {max_bytes} are accepted here")
            if length == b"0" and b"transfer-encoding" not in dict(scope["headers"]):
                over = True
            await self._app(scope, bounded, sending)
            if refused is not None and not answered:
                raise refused
        except ClientDisconnect:  # there is nobody to answer, and nothing was done
            return
        except Refusal as refusal:
            if answered:
                raise
            refused = None
            body = json.dumps({"error": refusal.code, "reason": refusal.reason}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            if refusal.code == "too-often":
                headers.append((b"retry-after", RETRY_AFTER))
            await sending({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await sending({"type": "http.response.body", "body": body})
