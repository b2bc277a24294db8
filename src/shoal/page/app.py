"""The pages' ASGI application: static files, documents as JSON, and an event stream that says what changed.

Read-only: every route is a GET, and none reads a file whose path a request names. The Content-Security-Policy lets a
browser run nothing but our own files, and talk to nobody but this server.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shoal.coordinator.http.loopback import is_loopback, is_loopback_name
from shoal.coordinator.http.rate_limit import network_of
from shoal.page.data_routes import Handler, data_handlers, problem
from shoal.page.pages import REQUESTS_PER_S, Pages

MAX_STREAMS = 256
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
PAGES = (
    "/",
    "/swarm",
    "/rollouts",
    "/verdicts",
    "/verdicts/{step:whole}/{number:whole}",
    "/node/{address}",
    "/ledger",
    "/join",
)


def make_app(pages: Pages) -> Starlette:
    """The application of a run's pages."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(pages.follow()), asyncio.create_task(pages.warm())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            pages.documents.close()
            pages.decoded.close()

    shell = _shell(pages)
    routes = [
        *[Route(path, shell, methods=["GET"]) for path in PAGES],
        Route("/static/{name}", _static(pages), methods=["GET"]),
        Route("/events", _events(pages), methods=["GET"]),
        *[Route(f"/data/{path}", handler, methods=["GET"]) for path, handler in data_handlers(pages).items()],
    ]
    # Starlette answers outside of all middleware where a handler failed, so this answer has its headers by itself.
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={Exception: _failed})
    app.add_middleware(Protected, pages=pages)
    return app


class Protected:
    """Refuses foreign host names and floods, and puts the security headers on every answer.

    A page on loopback answers to no other name than loopback's: otherwise any web site could point a name of its own
    at 127.0.0.1 and read it (DNS rebinding).
    """

    def __init__(self, app: Any, pages: Pages) -> None:
        self._app, self._pages = app, pages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else refusal
        await app(scope, receive, protected)

    def _refusal(self, scope: Any) -> Response | None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if not self._pages.public and not is_loopback_name(host):
            return problem(421, f"host {host:.80}: this page is served on loopback only; open it as 127.0.0.1")
        network = network_of(scope)
        if not is_loopback(network) and not self._pages.rates.take(network, time.monotonic()):
            return problem(
                429, f"more than {REQUESTS_PER_S:g} requests per second; wait a second", {"Retry-After": "1"}
            )
        return None


async def _failed(_: Request, _error: Exception) -> Response:
    return problem(500, "this cannot be shown; the log of the page's server says why", HEADERS)


def _shell(pages: Pages) -> Handler:
    async def shell(_: Request) -> Response:
        data, kind, _tag = pages.static["index.html"]
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    return shell


def _static(pages: Pages) -> Handler:
    async def static(request: Request) -> Response:
        found = pages.static.get(request.path_params["name"])
        if found is None:
            return problem(404, f"{request.url.path:.80}: is not one of this page's files")
        data, kind, tag = found
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return static


def _events(pages: Pages) -> Handler:
    async def events(request: Request) -> Response:
        network = network_of(request.scope)
        # Of one network half, as of connections; behind a proxy on this machine nobody knows whose they are.
        room = MAX_STREAMS if is_loopback(network) else MAX_STREAMS // 2
        if pages.streams.total() >= MAX_STREAMS or pages.streams[network] >= room:
            return problem(503, f"{room} pages are open already; reload later", {"Retry-After": "30"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(pages.events(network), media_type="text/event-stream", headers=headers)

    return events
