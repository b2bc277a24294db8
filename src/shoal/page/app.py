"""The pages' ASGI application: static files, documents as JSON, and an event stream that says what changed.

Read-only: every route is a GET, and none reads a file whose path a request names. The Content-Security-Policy lets a
browser run nothing but our own files, and talk to nobody but this server.
"""

import asyncio
import hashlib
import ipaddress
import math
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.coordinator.archive import has_records, reading
from shoal.coordinator.http.rate_limit import network_of
from shoal.errors import ConfigError, ShoalError
from shoal.page.contributor import node_document
from shoal.page.documents import Busy, Documents
from shoal.page.joining import join_document
from shoal.page.ledger import ledger_document
from shoal.page.privacy import public_text
from shoal.page.rollouts import RolloutQuery, StepIndex, answer_text, group_document, rollouts_document
from shoal.page.run import live_document, run_document
from shoal.page.source import RunFiles
from shoal.page.swarm import MAX_PAGE, NodeQuery, swarm_document
from shoal.page.verdicts import VerdictQuery, verdict_document, verdicts_document
from shoal.protocol.refusal import Refusal
from shoal.shardcast.serve.rate_limit import Rates

LOOK_S = 0.5
BEAT_S = 15.0
MAX_STREAMS = 256
# Of one network, where it is not this machine itself; a page that is opened asks about ten times.
REQUESTS_PER_S, BURST = 20.0, 200.0
MAX_TEXT = 200
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
    "/verdicts/{step:int}/{number:int}",
    "/node/{address}",
    "/ledger",
    "/join",
)
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
Document = Mapping[str, object]
Handler = Callable[[Request], Awaitable[Response]]


class Missing(ShoalError):
    """What was asked for is not there; the text says why."""


class Pages:
    """A run's pages: its files, followed by one thread, and the documents made of them."""

    def __init__(self, files: RunFiles, *, public: bool = False) -> None:
        self.files = files
        self.public = public
        self.documents = Documents()
        self.index = StepIndex()
        self.streams = 0
        self.rates = Rates(REQUESTS_PER_S, BURST)
        self._changed = asyncio.Event()
        self._stopping = False
        self.static = _static_files()

    async def follow(self) -> None:
        """Looks for news for as long as the server runs. A file that cannot be read now may be readable later."""
        seen: tuple[int, ...] = ()
        while True:
            with suppress(OSError, ShoalError):
                await asyncio.to_thread(self.files.refresh)
            if (now := self.revision) != seen:
                seen = now
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(LOOK_S)

    async def warm(self) -> None:
        """Reads the newest rollouts before anybody asks: the process that decodes them takes seconds to start."""
        make = self.recorded(lambda db: rollouts_document(db, self.files, self.index, RolloutQuery()))
        with suppress(ShoalError, Busy):
            await self.documents.get("/data/rollouts?", self.revision[2], make)

    @property
    def revision(self) -> tuple[int, int, int]:
        revision = self.files.revision
        return revision.steps, revision.roles, revision.records

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: what changed, with the live part of the run's page; a comment when nothing does."""
        self.streams += 1
        try:
            while not self._stopping:
                changed = self._changed
                live = await self.documents.get("live", self.revision, lambda: self.live())
                yield b"event: news\ndata: " + live + b"\n\n"
                try:
                    await asyncio.wait_for(changed.wait(), BEAT_S)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.streams -= 1

    def stop(self) -> None:
        """Ends all event streams, so that a server that is stopped need not cut them off."""
        self._stopping = True
        self._changed.set()

    def live(self) -> Document:
        steps, roles, records = self.revision
        return {"revision": {"steps": steps, "roles": roles, "records": records}, **live_document(self.files)}

    def recorded(self, make: Callable[[Any], Document | None]) -> Callable[[], Document]:
        """A document that is made of the coordinator's records."""

        def made() -> Document:
            run = self.files.run
            if run is None:
                raise Missing(self.files.refused or "this run's config is not here")
            if not has_records(run):
                raise Missing(
                    "the coordinator's records are not here: it has not started yet, or it ran on another machine"
                )
            with reading(run) as db:
                document = make(db)
            if document is None:
                raise Missing("it is not on record: it never was, or its bytes were removed after training")
            return document

        return made


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

    shell = _shell(pages)
    routes = [
        *[Route(path, shell, methods=["GET"]) for path in PAGES],
        Route("/static/{name}", _static(pages), methods=["GET"]),
        Route("/events", _events(pages), methods=["GET"]),
        *[Route(f"/data/{path}", handler, methods=["GET"]) for path, handler in _data(pages).items()],
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
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
        if not _is_loopback(network) and not self._pages.rates.take(network, time.monotonic()):
            return problem(
                429, f"more than {REQUESTS_PER_S:g} requests per second; wait a second", {"Retry-After": "1"}
            )
        return None


def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine's loopback, with any port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.strip("[]").lower() == "localhost" or _is_loopback(name.strip("[]"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers=dict(headers or {}))


def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """(bytes, type, ETag) by name: read once, so that no request reaches the disk."""
    found = {}
    for folder in (resources.files("shoal.page") / "static", resources.files("shoal.page") / "static" / "vendor"):
        for file in folder.iterdir():
            suffix = f".{file.name.rpartition('.')[2]}"
            if file.is_file() and suffix in TYPES:
                data = file.read_bytes()
                kind = TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                found[file.name] = data, kind, f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    return found


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
    async def events(_: Request) -> Response:
        if pages.streams >= MAX_STREAMS:
            return problem(503, f"{MAX_STREAMS} pages are open already; reload later", {"Retry-After": "30"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(pages.events(), media_type="text/event-stream", headers=headers)

    return events


def _data(pages: Pages) -> dict[str, Handler]:
    """A handler per document: what it is made of decides when it is made again."""
    files = pages.files

    def steps() -> object:
        return pages.revision[:2]

    def records() -> object:
        return pages.revision[2]

    def run(_: Request) -> Callable[[], Document]:
        return lambda: {"revision": pages.live()["revision"], **run_document(files)}

    def swarm(request: Request) -> Callable[[], Document]:
        ask = _Asked(request)
        query = NodeQuery(ask.text("state"), ask.text("role"), ask.text("search"), ask.text("sort"), ask.page())
        return pages.recorded(lambda db: swarm_document(db, files, query))

    def rollouts(request: Request) -> Callable[[], Document]:
        ask = _Asked(request)
        query = RolloutQuery(
            ask.whole("step"),
            ask.text("source"),
            ask.whole("task"),
            ask.text("node").lower(),
            ask.real("reward_from", -math.inf),
            ask.real("reward_to", math.inf),
            int(ask.real("tokens_from", 0)),
            int(ask.real("tokens_to", 1 << 31)),
            ask.page(),
        )
        return pages.recorded(lambda db: rollouts_document(db, files, pages.index, query))

    def group(request: Request) -> Callable[[], Document]:
        at = request.path_params
        return pages.recorded(lambda db: group_document(db, files, at["step"], at["number"], at["group"]))

    def answer(request: Request) -> Callable[[], Document]:
        at = request.path_params
        return pages.recorded(lambda db: answer_text(db, files, at["step"], at["number"], at["group"], at["sample"]))

    def verdicts(request: Request) -> Callable[[], Document]:
        ask = _Asked(request)
        query = VerdictQuery(
            ask.text("result") or "refused", ask.text("check"), ask.text("node"), ask.whole("step"), ask.page()
        )
        return pages.recorded(lambda db: verdicts_document(db, query))

    def verdict(request: Request) -> Callable[[], Document]:
        at = request.path_params
        return pages.recorded(lambda db: verdict_document(db, files, at["step"], at["number"]))

    def node(request: Request) -> Callable[[], Document]:
        address, page = request.path_params["address"].lower()[:42], _Asked(request).page()
        return pages.recorded(lambda db: node_document(db, files, address, page))

    def ledger(_: Request) -> Callable[[], Document]:
        return lambda: ledger_document(files.ledger, files.path)

    def join(_: Request) -> Callable[[], Document]:
        return lambda: join_document(files)

    def both() -> object:
        return pages.revision

    return {
        "run": _document(pages, steps, run),
        "swarm": _document(pages, records, swarm),
        "rollouts": _document(pages, records, rollouts),
        "rollouts/{step:int}/{number:int}/{group:int}": _document(pages, records, group),
        "rollouts/{step:int}/{number:int}/{group:int}/{sample:int}": _document(pages, records, answer),
        "verdicts": _document(pages, records, verdicts),
        "verdicts/{step:int}/{number:int}": _document(pages, records, verdict),
        "node/{address}": _document(pages, records, node),
        "ledger": _document(pages, records, ledger),
        "join": _document(pages, both, join),
    }


def _document(
    pages: Pages, revision: Callable[[], object], asked: Callable[[Request], Callable[[], Document]]
) -> Handler:
    async def handler(request: Request) -> Response:
        query = str(request.query_params)
        if len(query) > 1000:
            return problem(422, f"a query of {len(query)} characters; a page asks with 1000 at most")
        try:
            make = asked(request)
            key = f"{request.url.path}?{query}"
            data = await pages.documents.get(key, revision(), make)
        except Missing as error:
            return problem(404, str(error))
        except Refusal as error:
            return problem(error.status, public_text(error.reason))
        except Busy:
            return problem(503, "too many documents are asked for at once; try again", {"Retry-After": "1"})
        except ConfigError as error:
            return problem(422, public_text(error))
        except ShoalError as error:
            return problem(503, public_text(error))
        return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})

    return handler


class _Asked:
    """Values of a query string; one that breaks a rule is a ConfigError that names it."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def text(self, name: str) -> str:
        return self._query.get(name, "")[:MAX_TEXT].strip()

    def whole(self, name: str) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not value.isdecimal() or len(value) > 18:
            raise ConfigError(f"{name} = {value!r:.40}: must be a whole number")
        return int(value)

    def real(self, name: str, default: float) -> float:
        value = self.text(name)
        if not value:
            return default
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if math.isnan(found) or abs(found) > 1e12:
            raise ConfigError(f"{name} = {value!r:.40}: must be a number")
        return found

    def page(self) -> int:
        return min(self.whole("page") or 0, MAX_PAGE)
