"""What every request must pass before it is read: a name of this machine, the key, a bounded body."""

import asyncio
import hmac
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from shoal.coordinator.http.loopback import is_loopback_name
from shoal.openai_api.errors import ApiError

MAX_BODY = 1 << 20
# A body has this long to arrive, all of it.
BODY_S = 30.0


def problem(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, headers=error.headers)


class Gate:
    """ASGI middleware: refuses foreign host names and wrong keys.

    A server on loopback answers to loopback's names alone: any web site could point a name of its own at 127.0.0.1
    (DNS rebinding). That a body must be declared as JSON keeps a site's forms out as well.
    """

    def __init__(self, app: Any, *, public: bool, api_key: str | None) -> None:
        self._app, self._public, self._key = app, public, api_key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else problem(refusal))(scope, receive, send)

    def _refusal(self, scope: Any) -> ApiError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._public and not is_loopback_name(host):
            return ApiError(421, f"host {host[:80]!r}: this server answers on loopback only; ask it as 127.0.0.1")
        if self._key is None:
            return None
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            return ApiError(
                401, "the API key is missing or wrong; send Authorization: Bearer KEY", code="invalid_api_key"
            )
        return None


async def read_body(request: Request) -> bytes:
    """A JSON body, or the ApiError that says why it is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type {kind[:80]!r}: must be application/json", code="unsupported_content_type")
    too_large = ApiError(413, f"body: more than the {MAX_BODY} bytes that are accepted here", code="body_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"body: {len(body)} bytes came in {BODY_S:.0f} s; send it faster") from None
    except ClientDisconnect:
        raise ApiError(400, "body: the connection ended before it did") from None
    return bytes(body)
