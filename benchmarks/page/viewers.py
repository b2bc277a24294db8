"""Open pages without a browser: each holds an event stream and fetches the run's document at each new step.

`python -m benchmarks.page.viewers PORT COUNT` is as many people who look, in one process with the lowest priority: in
truth their browsers are on other machines.
"""

import asyncio
import json
import os
import sys

MAX_LINE = 1 << 22


async def view(port: int) -> None:
    """One open page, until this process is ended."""
    seen = None
    reader, writer = await _ask(port, "/events")
    try:
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            steps = json.loads(line[6:])["revision"]["steps"]
            if steps != seen:
                seen = steps
                await _fetch(port, "/data/run")
    finally:
        writer.close()


async def _fetch(port: int, path: str) -> bytes:
    reader, writer = await _ask(port, path)
    try:
        return await reader.read()
    finally:
        writer.close()


async def _ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def main(port: int, count: int) -> None:
    await asyncio.gather(*[view(port) for _ in range(count)])


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
