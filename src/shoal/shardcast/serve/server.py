"""HTTP server of a store: ranges by sendfile(2), long polls, and nothing that the store's manifests do not list.

Over TLS, which the kernel cannot do for us, the bytes pass through this process.

`GET /head.json?after=SEQUENCE&wait=S` and `GET /PACKAGE/manifest.jsonl?wait=S` with `Range: bytes=N-` are long polls;
`GET /PACKAGE/files/NAME` with a range gives bytes of verified pieces. A plain web server over the same directory
answers the same requests, without the waiting. `/metrics` and `/tree.json` are for those who look.
"""

import asyncio
import io
import os
import re
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from aiohttp import web

from shoal.crypto.handshake import Handshake
from shoal.crypto.tls import vouched
from shoal.errors import ShardcastError
from shoal.files import parse_json, read_regular
from shoal.shardcast.format.manifest import FILES, MANIFEST, Index
from shoal.shardcast.format.records import MAX_HEAD, MIB, PACKAGE_NAME
from shoal.shardcast.format.store import HEAD, Store, take_hold
from shoal.shardcast.serve.child_relays import Child, Children
from shoal.shardcast.serve.connections import Connections
from shoal.shardcast.serve.file_watch import Watch, state
from shoal.shardcast.serve.rate_limit import AllowList, Limits, Rates

MAX_LINES = MIB  # bytes of manifest in one answer
SLICE = 8 * MIB  # bytes between looks at how fast a reader is
TLS_CHUNK = MIB // 4  # encrypted at once
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


class Answer(Exception):
    """A short answer instead of data."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


class Server:
    """One store on one port."""

    def __init__(
        self,
        store: Store,
        *,
        name: str = "origin",
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        allow: Sequence[str] | None = None,
        public: str | None = None,
        context: ssl.SSLContext | None = None,
        address: str = "",
    ) -> None:
        """`public` is the URL under which others know this server, if it is not where it listens.

        With a context it speaks TLS; `address` is then who vouches for its certificate.
        """
        self.store = store
        self.name = name
        self.host = host
        self.port = port
        self.limits = limits or Limits()
        self.counts: Counter[str] = Counter()
        self.facts: Callable[[], dict[str, float]] = dict  # more for /metrics
        self._public_url = public
        self._public = urlsplit(public).netloc if public else None
        self._context = context
        self._address = address
        self._allow = AllowList(frozenset(allow)) if allow is not None else None
        self._rates = Rates(self.limits.requests_per_s, self.limits.burst)
        self._indexes: dict[str, Index] = {}
        self._leases: dict[str, tuple[int, float]] = {}
        self._children = Children(store.path)
        self._watch = Watch()
        self._connections: Connections | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://{self._own_host}"

    @property
    def known_as(self) -> str:
        """The URL for others, with the address that vouches for what they find there."""
        return vouched(self._public_url or self.url, self._address if self._context else "")

    @property
    def _own_host(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> asyncio.Server:
        """Listens; the port is known afterwards."""
        loop = asyncio.get_running_loop()
        self._connections = connections = Connections(self._handle, self.limits, self.counts)
        self._watch = Watch()
        try:
            server = await loop.create_server(self._protocol(connections), self.host, self.port, backlog=1024)
        except OSError as error:
            raise ShardcastError(
                f"{self.url}: cannot listen ({error.strerror}); give another --host or --port"
            ) from error
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _protocol(self, connections: Connections) -> Callable[[], asyncio.Protocol]:
        context = self._context
        if context is None:
            return connections
        return lambda: Handshake(context, lambda _below: connections(), connections, self.limits.idle_s)

    async def keep(self, listening: asyncio.Server | None) -> None:
        """Serves until cancelled; without a listener it only waits."""
        try:
            while True:
                await asyncio.sleep(min(5.0, self.limits.lease_s))
                self._let_go()
                self._children.save()
        finally:
            if listening is not None:
                listening.close()
            self._watch.close()
            if self._connections is not None:
                await self._connections.shutdown(0.05)
            self._let_go(everything=True)
            self._children.save()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connections = self._connections
        assert connections is not None
        with connections.busy(request.protocol):
            try:
                return await self._answer(request)
            except Answer as answer:
                self.counts["refused" if answer.status in (401, 403, 405, 429) else "missed"] += 1
                body = f"{answer.text}\n".encode(errors="replace")  # a header may have bytes that are not text
                return web.Response(status=answer.status, body=body, content_type="text/plain", headers=answer.headers)
            except OSError as error:
                if isinstance(error, ConnectionError):
                    raise
                raise web.HTTPNotFound(text="gone\n") from error

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.counts["requests"] += 1
        address = request.remote or "?"
        if not self._rates.take(address, time.monotonic()):
            raise Answer(429, "too many requests", {"Retry-After": "1"})
        if request.method not in ("GET", "HEAD"):
            raise Answer(405, "GET or HEAD", {"Allow": "GET, HEAD"})
        if self._allow is not None:
            if request.host not in self._own_names(request):  # what a visitor signed elsewhere must not open this door
                raise Answer(401, f"signed for another server, {request.host[:80]}; start this one with --url")
            refusal = self._allow.refusal(request.headers, request.method, request.host, request.raw_path, time.time())
            if refusal:
                raise Answer(401, refusal)
        child = self._child(request, address)
        match request.path.split("/")[1:]:
            case [name] if name == HEAD:
                return await self._head(request)
            case ["metrics"]:
                return web.Response(text=self._metrics(), content_type="text/plain")
            case ["tree.json"]:
                return web.json_response(self.tree())
            case [package, name] if name == MANIFEST and PACKAGE_NAME.fullmatch(package):
                return await self._manifest(request, package)
            case [package, folder, *name] if folder == FILES and PACKAGE_NAME.fullmatch(package):
                return await self._bytes(request, child, package, "/".join(name))
        raise Answer(404, "not found")

    async def _head(self, request: web.BaseRequest) -> web.StreamResponse:
        path = self.store.path / HEAD
        after = _number(request, "after", -1)
        deadline = self._deadline(request)
        while True:
            seen = state(path)
            try:
                data = read_regular(path, MAX_HEAD)
                if after < 0 or parse_json(data)[0]["sequence"] > after:
                    return web.Response(body=data, content_type="application/json", headers=_FRESH)
            except FileNotFoundError:
                data = b""
            if self._watch.closed or asyncio.get_running_loop().time() >= deadline:
                raise Answer(304 if data else 404, "nothing newer")
            await self._watch.changed(path, seen, deadline)

    async def _manifest(self, request: web.BaseRequest, package: str) -> web.StreamResponse:
        path = self.store.folder(package) / MANIFEST
        wanted = _range(request)
        start = wanted[0] if wanted else 0
        deadline = self._deadline(request)
        while True:
            seen = state(path)
            index = self._index(package)
            if index is not None and index.read_bytes > start:
                break
            if self._watch.closed or asyncio.get_running_loop().time() >= deadline:
                if index is None:
                    raise Answer(404, "no such package here")
                raise Answer(416, "nothing more yet", {"Content-Range": f"bytes */{index.read_bytes}"})
            await self._watch.changed(path, seen, deadline)
        self._lease(package)
        end = index.read_bytes if wanted is None else min(index.read_bytes, start + MAX_LINES)
        with path.open("rb") as file:
            data = os.pread(file.fileno(), end - start, start)
        headers = {**_FRESH, "Content-Range": f"bytes {start}-{start + len(data) - 1}/{index.read_bytes}"}
        if wanted is None:
            return web.Response(body=data, headers=_FRESH)
        return web.Response(status=206, body=data, headers=headers)

    async def _bytes(self, request: web.BaseRequest, child: Child, package: str, name: str) -> web.StreamResponse:
        index = self._index(package)
        if index is None or not index.length(name):
            raise Answer(404, "no such file here")
        wanted = _range(request)
        if wanted is None and index.closing is None:
            raise Answer(416, "the file is still arriving; ask for a range")
        start = wanted[0] if wanted else 0
        end = min(wanted[1] + 1 if wanted and wanted[1] is not None else index.length(name), index.length(name))
        if start >= end or not index.covers(name, start, end):
            raise Answer(416, "not here yet", {"Content-Range": f"bytes */{index.length(name)}"})
        self._lease(package)
        response = web.StreamResponse(status=206 if wanted else 200, headers=_LASTING)
        if wanted:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{index.length(name)}"
        response.content_length = end - start
        descriptor = os.open(index.folder / FILES / name, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            await response.prepare(request)
            if request.method == "GET":
                await self._send(request, response, file, start, end, child, package)
        await response.write_eof()
        return response

    async def _send(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        file: io.FileIO,
        start: int,
        end: int,
        child: Child,
        package: str,
    ) -> None:
        loop = asyncio.get_running_loop()
        while start < end:
            count = min(SLICE, end - start)
            transport = request.transport
            if transport is None:
                raise ConnectionResetError
            try:
                async with asyncio.timeout(self.limits.grace_s + count / self.limits.min_bytes_per_s):
                    if self._context is None:
                        await loop.sendfile(transport, file, start, count)
                    else:
                        for at in range(start, start + count, TLS_CHUNK):
                            size = min(TLS_CHUNK, start + count - at)
                            await response.write(os.pread(file.fileno(), size, at))
            except TimeoutError:
                self.counts["cut_off"] += 1
                transport.abort()
                raise ConnectionResetError("reader too slow") from None
            start += count
            self.counts["bytes_sent"] += count
            child.sent[package] += count
        self.counts["ranges_sent"] += 1

    def _index(self, package: str) -> Index | None:
        """What is here of a package, as of now."""
        index = self._indexes.get(package)
        if index is None:
            index = Index(self.store.folder(package))
        with suppress(ShardcastError):  # a line that is not a record: the lines before it count
            index.refresh()
        if index.opening is None or not index.folder.is_dir():
            self._indexes.pop(package, None)
            return None
        self._indexes[package] = index
        return index

    def _lease(self, package: str) -> None:
        held = self._leases.get(package)
        descriptor = held[0] if held else take_hold(self.store.folder(package))
        if descriptor is None:
            raise Answer(404, "no such package here")
        self._leases[package] = (descriptor, time.monotonic() + self.limits.lease_s)

    def _let_go(self, everything: bool = False) -> None:
        now = time.monotonic()
        for package, (descriptor, until) in list(self._leases.items()):
            if everything or now > until:
                os.close(descriptor)
                del self._leases[package]
        for package in [package for package, index in self._indexes.items() if not index.folder.is_dir()]:
            del self._indexes[package]

    def _deadline(self, request: web.BaseRequest) -> float:
        wait = min(_number(request, "wait", 0), int(self.limits.wait_s))
        return asyncio.get_running_loop().time() + max(0, wait)

    def _own_names(self, request: web.BaseRequest) -> set[str | None]:
        """HOST:PORT under which this request may have reached us."""
        transport = request.transport
        here = transport.get_extra_info("sockname") if transport else None
        return {self._public, self._own_host, f"{here[0]}:{here[1]}" if here else None}

    def _child(self, request: web.BaseRequest, address: str) -> Child:
        headers = request.headers
        return self._children.heard(address, headers.get("Shoal-Node", "")[:64], headers.get("Shoal-Url", "")[:200])

    def tree(self) -> dict[str, object]:
        """What this node has of each version, and who fetched what lately: names and counts, no addresses."""
        packages = {}
        for package in self.store.packages():
            if (index := self._index(package)) is not None:
                packages[package] = {"bytes": index.size, "whole": index.closing is not None}
        return {"name": self.name, "packages": packages, "children": self._children.public()}

    def _metrics(self) -> str:
        lines = []
        for name, value in sorted({**_ZERO, **self.counts}.items()):
            lines += [f"# TYPE shoal_cast_{name}_total counter", f"shoal_cast_{name}_total {value}"]
        facts = {"connections": len(self._connections.open) if self._connections else 0, **self.facts()}
        for name, fact in sorted(facts.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE shoal_cast_{name} {kind}", f"shoal_cast_{name} {fact:.15g}"]
        lines.append("# TYPE shoal_cast_package_bytes gauge")
        for package in self.store.packages():
            if (index := self._index(package)) is not None:
                whole = str(index.closing is not None).lower()
                lines.append(f'shoal_cast_package_bytes{{package="{package}",whole="{whole}"}} {index.size}')
        return "\n".join(lines) + "\n"


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serves from a thread of this process while the block lasts."""
    ready: Future[Callable[[], object]] = Future()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        try:
            listening = await server.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        with suppress(asyncio.CancelledError):
            await server.keep(listening)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="cast-server", daemon=True)
    thread.start()
    stop = ready.result()
    try:
        yield server
    finally:
        stop()
        thread.join()


_FRESH = {"Cache-Control": "no-cache"}
_LASTING = {"Cache-Control": "public, immutable, max-age=31536000", "Content-Type": "application/octet-stream"}
_ZERO = dict.fromkeys(("requests", "bytes_sent", "ranges_sent", "refused", "missed", "cut_off"), 0)


def until_stopped(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Runs until Ctrl-C or SIGTERM, which are ordinary ends."""

    async def guarded() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(guarded())


def _number(request: web.BaseRequest, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else default


def _range(request: web.BaseRequest) -> tuple[int, int | None] | None:
    text = request.headers.get("Range")
    if text is None:
        return None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise Answer(416, "one range of bytes, as in bytes=0-1048575")
    return int(match[1]), int(match[2]) if match[2] else None
