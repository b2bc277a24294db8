"""Links of a chosen speed: a proxy before each node of the broadcast benchmark that counts and throttles its bytes.

A standalone script, spoken to in JSON lines on stdin and stdout:

    in   {"to": 8001, "rate": 16000000}    bytes per second towards each client, or null for as fast as it goes
    out  {"port": 40001}                   connect here instead
    in   {"count": 40001, "beyond": 0}
    out  {"down": 1234, "up": 56, "at": 7.5}    bytes that came from the node, bytes that went to it, and when, on the
                                                monotonic clock, more than `beyond` bytes had come; null before that

All connections of a link share its speed. The end of stdin ends it.
"""

import asyncio
import json
import socket
import sys
import time
from bisect import bisect_right
from contextlib import suppress
from typing import Any

CHUNK = 1 << 14
# The kernel would otherwise take megabytes off a sender's hands and hide what the link does to it.
KERNEL_BUFFER = 1 << 17
# A sleep ends late on a busy machine; what a link missed within this time it makes up for, so that it keeps its speed.
CREDIT_S = 0.05


class Bucket:
    """Passes `rate` bytes per second: each transfer waits until those before it have gone through."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        if self.rate is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - CREDIT_S) + size / self.rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class Link:
    def __init__(self, to: int, rate: float | None) -> None:
        self.to = to
        self.down = self.up = 0
        self._came: list[tuple[int, float]] = []
        self._bucket = Bucket(rate)

    def at(self, beyond: int) -> float | None:
        """When more than so many bytes had come."""
        later = bisect_right(self._came, beyond, key=lambda came: came[0])
        return self._came[later][1] if later < len(self._came) else None

    async def open(self) -> int:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0, limit=CHUNK)
        self._server = server  # kept, or it would be closed
        return int(server.sockets[0].getsockname()[1])

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
        end.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.to))
            far_reader, far_writer = await asyncio.open_connection(sock=end, limit=CHUNK)
        except OSError:
            end.close()
            writer.close()
            return
        ways = [
            asyncio.create_task(self._pass(far_reader, writer, down=True)),
            asyncio.create_task(self._pass(reader, far_writer, down=False)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        writer.close()
        far_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if down:
                    self.down += len(data)
                    self._came.append((self.down, time.monotonic()))
                    await self._bucket.take(len(data))
                else:
                    self.up += len(data)
                writer.write(data)
                await writer.drain()


async def serve() -> None:
    links: dict[int, Link] = {}
    answer: dict[str, Any]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        question: dict[str, Any] = json.loads(line)
        if "count" in question:
            link = links[question["count"]]
            answer = {"down": link.down, "up": link.up, "at": link.at(question["beyond"])}
        else:
            link = Link(question["to"], question["rate"])
            port = await link.open()
            links[port] = link
            answer = {"port": port}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve())
