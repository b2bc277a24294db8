"""A network that misbehaves: a proxy before a coordinator that loses, cuts, repeats and reorders requests, and one
before a relay that cuts connections.

Both run in a thread of this process and can be told to let nothing through for a while.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

START_S = 10.0
UPSTREAM_S = 120.0
MAX_HEAD = 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Mischief(StrEnum):
    """What may happen to a request on its way."""

    BEFORE = "cut before the request"
    LOST = "answer lost"
    HALF_REQUEST = "cut in the middle of the request"
    HALF_ANSWER = "cut in the middle of the answer"
    TWICE = "sent twice, first answer"
    AGAIN = "sent twice, second answer"
    LATE = "delayed"
    STRAY = "cut, and delivered later"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    data: bytes
    """As it came, head and body."""


class _Listener:
    """Listens on a free port of the loopback; `handle` gets each connection while it is not `blocked`."""

    def __init__(self, target_port: int, seed: int) -> None:
        self.target_port = target_port
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.blocked = False
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def drop_all(self) -> None:
        """Cuts every connection; on the loop's thread."""
        for writer in self._open:
            writer.transport.abort()

    async def handle(self, client: Streams) -> None:
        raise NotImplementedError

    async def upstream(self) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target_port, limit=MAX_HEAD)
        self._open.add(writer)
        return reader, writer

    def close(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.transport.abort()

    def later(self, work: Awaitable[None]) -> None:
        async def quietly() -> None:
            with suppress(OSError, EOFError, ValueError, TimeoutError):
                await work

        task = asyncio.ensure_future(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if not self.blocked:
                await self.handle((reader, writer))
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a connection that ends is what this is for
        finally:
            self.close(writer)


class Proxy(_Listener):
    """Before a coordinator: of every request it draws what happens to it."""

    def __init__(self, target_port: int, seed: int, rate: float, kinds: Sequence[Mischief] = tuple(Mischief)) -> None:
        super().__init__(target_port, seed)
        self.rate = rate
        self.kinds = kinds
        self.is_ahead: Callable[[], bool] = lambda: False
        """Whether the run is to get no further for now: requests for leases are cut."""
        self.answers: Counter[int] = Counter()
        self.faults: list[str] = []
        """Answers that a coordinator must never give."""

    async def handle(self, client: Streams) -> None:
        while (request := await self._read(client[0])) is not None:
            if self.blocked:
                return
            if request.target == "/v1/leases" and self.is_ahead():
                await asyncio.sleep(0.3)
                return
            happens = self.rng.choice(self.kinds) if self.rng.random() < self.rate else None
            if happens is not None:
                self.counts[happens] += 1
            if not await self._pass(request, client[1], happens):
                return

    async def _pass(self, request: Request, client: asyncio.StreamWriter, happens: Mischief | None) -> bool:
        """Whether the connection goes on."""
        if happens is Mischief.BEFORE:
            return False
        if happens is Mischief.STRAY:
            self.later(self._stray(request, self.rng.uniform(0.2, 4.0)))
            return False
        if happens is Mischief.HALF_REQUEST:
            await self._half(request)
            return False
        if happens is Mischief.LATE:
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
        if happens is Mischief.TWICE:
            self.later(self._stray(request, self.rng.uniform(0.0, 0.3)))
        answer = await self._forward(request)
        if happens is Mischief.AGAIN:
            answer = await self._forward(request)
        if happens is Mischief.LOST:
            return False
        if happens is Mischief.HALF_ANSWER:
            client.write(answer[: self.rng.randrange(1, len(answer))])
            await client.drain()
            return False
        client.write(answer)
        await client.drain()
        return b"connection: close" not in answer.partition(b"\r\n\r\n")[0].lower()

    async def _stray(self, request: Request, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._forward(request)

    async def _half(self, request: Request) -> None:
        _, writer = await self.upstream()
        try:
            head = request.data.index(b"\r\n\r\n") + 4
            first = head if len(request.data) > head else 1
            writer.write(request.data[: self.rng.randrange(first, len(request.data))])
            await writer.drain()
            await asyncio.sleep(0.02)
        finally:
            self.close(writer)

    async def _forward(self, request: Request) -> bytes:
        reader, writer = await self.upstream()
        try:
            writer.write(request.data)
            await writer.drain()
            async with asyncio.timeout(UPSTREAM_S):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = head + await reader.readexactly(_length(head))
        finally:
            self.close(writer)
        status = int(head.split(b" ", 2)[1])
        self.answers[status] += 1
        if status >= 500 and status != 503:
            self.faults.append(f"{request.method} {request.target}: answered {status} {answer[len(head) :][:300]!r}")
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        method, target, _ = head.split(b" ", 2)
        body = await reader.readexactly(_length(head))
        return Request(method.decode(), target.decode(), head + body)


class Cutter(_Listener):
    """Before a relay: some connections are cut after some bytes."""

    def __init__(self, target_port: int, seed: int, rate: float) -> None:
        super().__init__(target_port, seed)
        self.rate = rate

    async def handle(self, client: Streams) -> None:
        most = self.rng.randrange(1, 400_000) if self.rng.random() < self.rate else None
        server = await self.upstream()
        try:
            ways = [_pump(client[0], server[1], None), _pump(server[0], client[1], most)]
            _, rest = await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when="FIRST_COMPLETED")
            if most is not None:
                self.counts["connection to a relay cut"] += 1
            for way in rest:
                way.cancel()
        finally:
            self.close(server[1])


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, most: int | None) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data if most is None else data[:most])
            await sink.drain()
            if most is not None and (most := most - len(data)) <= 0:
                return


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


class Network:
    """Listeners at work in a thread."""

    def __init__(self, *listeners: _Listener) -> None:
        self.listeners = listeners
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_S), "the network did not come up"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)

    def block(self, blocked: bool) -> None:
        """Cuts all connections and lets no new ones through, or lets them through again."""
        for listener in self.listeners:
            listener.blocked = blocked
            if blocked:
                self._loop.call_soon_threadsafe(listener.drop_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        starting: list[Callable[[], Awaitable[asyncio.Server]]] = [listener.listen for listener in self.listeners]
        for start in starting:
            self._loop.run_until_complete(start())
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
