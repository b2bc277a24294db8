"""Main loop that origin and relay share: serve a store until SIGTERM, and report what is served."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from shoal.shardcast.format.records import Entry
from shoal.shardcast.serve.server import Server, until_stopped
from shoal.telemetry.status import StatusFile

STATUS_S = 0.5


def serve_until_stopped(
    server: Server,
    status: StatusFile,
    offered: Callable[[], str],
    feed: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Serves until SIGTERM, or until what feeds the server fails: then so does this."""

    async def main() -> None:
        await asyncio.gather(server.keep(await server.start()), *([feed()] if feed else []))

    def sent() -> str:
        return f"{server.counts['bytes_sent'] / 1e6:.0f} MB"

    until_stopped_telling(main, lambda: status.working(f"serving {offered()} at {server.url}, {sent()} so far"))
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
