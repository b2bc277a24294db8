"""Main loop that origin and relay share: serve a store until SIGTERM, and report what is served."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence

from shoal.shardcast.format.records import Entry
from shoal.shardcast.serve.server import Server, until_stopped
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile

STATUS_S = 0.5
TRAFFIC_S = 5.0


class Traffic:
    """Writes down what a server has sent since the last time it did: the compute ledger adds it up."""

    def __init__(self, server: Server, metrics: MetricsWriter) -> None:
        self._server, self._metrics = server, metrics
        self._noted = server.counts["bytes_sent"]
        self._when = time.monotonic()

    def note(self, every_s: float = 0.0) -> None:
        """Nothing sooner than `every_s` after the last time, and nothing if nothing was sent."""
        now, sent = time.monotonic(), self._server.counts["bytes_sent"]
        if sent > self._noted and now - self._when >= every_s:
            self._metrics.write("sent", bytes=sent - self._noted)
            self._noted, self._when = sent, now


def serve_until_stopped(
    server: Server,
    status: StatusFile,
    offered: Callable[[], str],
    feed: Callable[[], Coroutine[None, None, None]] | None = None,
    *,
    metrics: MetricsWriter,
) -> None:
    """Serves until SIGTERM, or until what feeds the server fails: then so does this.

    Nobody is told that it serves before it listens.
    """
    traffic = Traffic(server, metrics)
    is_listening = False

    async def main() -> None:
        nonlocal is_listening
        listener = await server.start()
        is_listening = True
        tell()
        await asyncio.gather(server.keep(listener), *([feed()] if feed else []))

    def sent() -> str:
        return f"{server.counts['bytes_sent'] / 1e6:.0f} MB"

    def tell() -> None:
        if not is_listening:
            return
        status.working(f"serving {offered()} at {server.url}, {sent()} so far")
        traffic.note(every_s=TRAFFIC_S)

    until_stopped_telling(main, tell)
    traffic.note()
    status.done(f"served up to {offered()}, {sent()}")


def until_stopped_telling(main: Callable[[], Coroutine[None, None, None]], tell: Callable[[], None]) -> None:
    """Runs until SIGTERM or until `main` fails, and tells every half second."""

    async def telling() -> None:
        while True:
            tell()
            await asyncio.sleep(STATUS_S)

    async def both() -> None:
        await asyncio.gather(main(), telling())

    until_stopped(both)


def offer(entries: Sequence[Entry]) -> str:
    numbers = sorted({entry.number for entry in entries if entry.root})
    return f"version {numbers[-1]}" if numbers else "nothing yet"
