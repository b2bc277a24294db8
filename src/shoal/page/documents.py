"""Single-flight cache of documents: each is made once per revision, by one thread, however many people ask.

What is asked for is bounded: so many documents are kept, so many requests wait, and one thread makes them all. A page
that many look at costs a run as much as a page that one looks at. Documents that take long have a cache, and with it a
thread and a queue, of their own.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

MAX_KEPT = 128
MAX_BYTES = 64 << 20
MAX_WAITING = 64


class Busy(Exception):
    """More documents are asked for than one thread makes; ask again."""


class Documents:
    """Documents as bytes of JSON, by what was asked for and the revision that it was made of."""

    def __init__(self, name: str = "page-documents") -> None:
        self._kept: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._size = 0
        self._making: dict[Hashable, asyncio.Task[bytes]] = {}
        self._thread = ThreadPoolExecutor(1, name)

    async def get(self, key: Hashable, revision: Hashable, make: Callable[[], object]) -> bytes:
        """The document, made now if none of this revision is kept; Busy if too many wait already."""
        kept = self._kept.get(key)
        if kept is not None and kept[0] == revision:
            self._kept.move_to_end(key)
            return kept[1]
        task = self._making.get(key)
        if task is None:
            if len(self._making) >= MAX_WAITING:
                raise Busy
            task = self._making[key] = asyncio.create_task(self._make(key, revision, make))
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, revision: Hashable, make: Callable[[], object]) -> bytes:
        try:
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(self._thread, lambda: to_json(make()))
            self._keep(key, revision, data)
            return data
        finally:
            del self._making[key]

    def _keep(self, key: Hashable, revision: Hashable, data: bytes) -> None:
        if before := self._kept.pop(key, None):
            self._size -= len(before[1])
        self._kept[key] = revision, data
        self._size += len(data)
        while len(self._kept) > MAX_KEPT or self._size > MAX_BYTES:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= len(gone)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def to_json(document: object) -> bytes:
    """JSON without NaN: a browser reads none. Half a character of a stranger's text becomes a question mark."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
