"""File watcher: wakes requests that wait for a file to change (long polling).

Growth is noticed by stat(2) every hundredth of a second, only of files that somebody waits for: it sees what other
processes write, on any file system, for a fraction of a percent of a core; inotify would save that and need a library.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.files import read_regular
from shoal.shardcast.format.records import MAX_HEAD
from shoal.shardcast.format.store import HEAD

LOOK_EVERY_S = 0.01


@dataclass(slots=True)
class _Waiting:
    """Those who wait for one file; it is looked at while there are any."""

    seen: tuple[int, int]
    count: int = 0
    event: asyncio.Event = field(default_factory=asyncio.Event)


class Watch:
    """Looks at the files that somebody waits for, and at no others: strangers may ask for any name."""

    def __init__(self) -> None:
        self._waiting: dict[Path, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def close(self) -> None:
        """Ends every wait: a server that stops answers those that wait, instead of cutting them off."""
        self.closed = True
        for waiting in self._waiting.values():
            waiting.event.set()

    @property
    def watched(self) -> int:
        """How many files are looked at."""
        return len(self._waiting)

    async def changed(self, path: Path, seen: tuple[int, int], deadline: float) -> None:
        """Returns when the file's state is not `seen`, at the deadline, or when the watch is closed."""
        loop = asyncio.get_running_loop()
        while not self.closed and state(path) == seen and (left := deadline - loop.time()) > 0:
            waiting = self._waiting.setdefault(path, _Waiting(seen))
            waiting.count += 1
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._look())
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(waiting.event.wait(), left)
            finally:
                waiting.count -= 1
                if not waiting.count and self._waiting.get(path) is waiting:
                    del self._waiting[path]

    async def _look(self) -> None:
        while self._waiting:
            for path, waiting in list(self._waiting.items()):
                if state(path) != waiting.seen:
                    waiting.event.set()
                    del self._waiting[path]
            await asyncio.sleep(LOOK_EVERY_S)


def state(path: Path) -> tuple[int, int]:
    """Changes with every write that anybody makes to a file; (0, 0) if there is none.

    A head is replaced, not extended: two times within one look, it may have the first one's inode, size and time again,
    so it is its bytes that count. A manifest only grows.
    """
    try:
        if path.name == HEAD:
            data = read_regular(path, MAX_HEAD)
            return hash(data), len(data)
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_ino, facts.st_size
