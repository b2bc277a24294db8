"""Connection limits with eviction: over a limit, the connection that was idle longest is closed."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from shoal.shardcast.serve.rate_limit import Limits


class Connections(web.Server):
    """aiohttp's server with limits in all and for each address."""

    def __init__(self, handler: Callable[..., object], limits: Limits, counts: Counter[str]) -> None:
        settings = {"keepalive_timeout": limits.idle_s, "access_log": None, "logger": _log}
        super().__init__(handler, handler_cancellation=True, **settings)  # type: ignore[arg-type]
        self.open: OrderedDict[object, tuple[asyncio.Transport, str]] = OrderedDict()  # idle longest first
        self._working: set[RequestHandler] = set()
        self._limits = limits
        self._counts = counts
        self._per_address: Counter[str] = Counter()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if not self.enter(handler, transport):
            transport.abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.leave(handler)

    def enter(self, connection: object, transport: asyncio.Transport) -> bool:
        """Counts a connection, from before its TLS handshake on; False if none that is idle could make room."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else "?"
        if self._per_address[address] >= self._limits.connections_per_address:
            self._make_room(address)
        elif len(self.open) >= self._limits.connections:
            self._make_room(None)
        self.open[connection] = (transport, address)
        self._per_address[address] += 1
        over = self._per_address[address] > self._limits.connections_per_address
        if over or len(self.open) > self._limits.connections:
            self._counts["connections_refused"] += 1
            return False
        return True

    def leave(self, connection: object) -> None:
        if (entry := self.open.pop(connection, None)) is not None:
            self._per_address[entry[1]] -= 1
            if not self._per_address[entry[1]]:
                del self._per_address[entry[1]]

    @contextmanager
    def busy(self, handler: RequestHandler) -> Iterator[None]:
        """While the block lasts the connection is not idle."""
        self._working.add(handler)
        try:
            yield
        finally:
            self._working.discard(handler)
            with suppress(KeyError):
                self.open.move_to_end(handler)

    def _make_room(self, address: str | None) -> None:
        for handler, (transport, theirs) in self.open.items():
            if handler not in self._working and address in (None, theirs):
                self._counts["connections_evicted"] += 1
                self.leave(handler)
                transport.abort()
                return


def _is_ours(record: logging.LogRecord) -> bool:
    """False for what visitors do wrong: it is counted, and must not fill a log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, ConnectionError))


_log = logging.getLogger("shoal.shardcast.serve.server")
_log.addFilter(_is_ours)
