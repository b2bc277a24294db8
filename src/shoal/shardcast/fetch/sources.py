"""Pool of sources: success and speed estimates, connections, and exponential backoff for those that fail or lie."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from shoal.crypto.keys import Key
from shoal.shardcast.fetch.http import Connection
from shoal.shardcast.fetch.selection import Belief

PER_SOURCE = 2  # transfers from one source at once: one is hashed while the other arrives
MAX_SOURCES = 64  # a thread waits at each; relays that come and go may have any number of names
FAR_BELOW = 0.1  # of the best other source's speed: such a transfer is given up


@dataclass(slots=True, eq=False)
class Source:
    """A relay or an origin, and what became of the requests to it."""

    url: str
    belief: Belief = field(default_factory=Belief)
    busy: int = 0
    paused_until: float = 0.0
    failures: int = 0  # in a row
    lies: int = 0
    said: str = ""  # the last thing that was wrong
    idle: list[Connection] = field(default_factory=list)
    gone: bool = False  # not asked any more


class Sources:
    """The sources of one puller. `changed` guards them, and is notified when one of them becomes free or fails."""

    def __init__(
        self,
        urls: Iterable[str],
        headers: dict[str, str],
        key: Key | None,
        changed: threading.Condition,
        counts: Counter[str],
        on_note: Callable[[str], None],
        nearest: int = 0,
    ) -> None:
        """No source is asked that is nearer to this machine than `nearest` (`http.distance`)."""
        self.on_note = on_note
        self._nearest = nearest
        self._all = [Source(url.rstrip("/")) for url in dict.fromkeys(urls)]
        self._headers = headers
        self._key = key
        self._changed = changed
        self._counts = counts
        self._live: set[Connection] = set()
        self._closed = False

    def __iter__(self) -> Iterator[Source]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, at: int) -> Source:
        return self._all[at]

    def add(self, urls: Iterable[str]) -> list[Source]:
        """Those of the URLs that are new, as sources.

        Where they get too many, those that are not among the URLs and did worst make room.
        """
        with self._changed:
            named = dict.fromkeys(url.rstrip("/") for url in urls)
            known = {source.url for source in self._all}
            others = [source for source in self._all if source.url not in named]
            others.sort(key=lambda source: (source.failures > 0, -source.belief.success))
            staying = [source for source in self._all if source.url in named]
            new = [Source(url) for url in named if url not in known][: max(0, MAX_SOURCES - len(staying))]
            room = MAX_SOURCES - len(staying) - len(new)
            for source in others[max(0, room) :]:
                source.gone = True
                for connection in source.idle:
                    connection.close()
                source.idle.clear()
            # An iteration over the old list may go on.
            self._all = [*(source for source in self._all if not source.gone), *new]
            return new

    def close(self) -> None:
        """Ends every transfer under way; no connection stays."""
        with self._changed:
            self._closed = True
            live = list(self._live)
            idle = [connection for source in self._all for connection in source.idle]
            for source in self._all:
                source.idle.clear()
        for connection in live:
            connection.interrupt()
        for connection in idle:
            connection.close()

    def ready(self) -> list[Source]:
        """Those that may be asked for one more transfer now."""
        now = time.monotonic()
        return [s for s in self._all if s.busy < PER_SOURCE and s.paused_until <= now]

    def until_ready(self) -> float:
        """Seconds after which it is worth looking again; a second at most."""
        now = time.monotonic()
        return min([1.0, *(s.paused_until - now for s in self._all if s.paused_until > now)])

    def least(self, source: Source, has: Callable[[str], bool]) -> float:
        """Below this many bytes per second a transfer is given up: another source has the piece and is far faster."""
        now = time.monotonic()
        others = [
            other.belief.success * (other.belief.bytes_per_s or 0.0)
            for other in self._all
            if other is not source and other.paused_until <= now and has(other.url)
        ]
        return FAR_BELOW * max(others, default=0.0)

    def connection(self, source: Source) -> Connection:
        with self._changed:
            connection = source.idle.pop() if source.idle else None
            if connection is None:
                connection = Connection(source.url, headers=self._headers, key=self._key, nearest=self._nearest)
            self._live.add(connection)
            return connection

    def release(self, source: Source, connection: Connection, *, keep: bool = False) -> None:
        with self._changed:
            self._live.discard(connection)
            if keep and not (self._closed or source.gone):
                source.idle.append(connection)
                return
        connection.close()

    def delivered(self, source: Source, size: int, seconds: float) -> None:
        with self._changed:
            source.failures = 0
            source.belief = source.belief.delivered(size / max(seconds, 1e-6))
            self._heal()

    def failed(self, source: Source, why: str) -> None:
        """Less belief in a source, and a pause that doubles up to some seconds."""
        with self._changed:
            if self._closed:
                return
            source.failures += 1
            source.said = why
            source.belief = source.belief.failed()
            source.paused_until = time.monotonic() + min(5.0, 0.05 * 2 ** min(source.failures, 10))
            self._counts["failures"] += 1
            self._heal()
            self._changed.notify_all()
        self.on_note(why)

    def lied(self, source: Source, why: str) -> None:
        """A source that lies is left alone, each time four times longer."""
        self.failed(source, why)
        with self._changed:
            source.lies += 1
            source.paused_until = time.monotonic() + min(300.0, 4.0 ** min(source.lies - 1, 5))
            self._counts["lies"] += 1

    def said(self) -> str:
        """What was last wrong with each, for an error message."""
        return "; ".join(f"{s.url}: {s.said.removeprefix(f'{s.url}: ') or 'nothing wrong'}" for s in self._all)

    def _heal(self) -> None:
        for source in self._all:
            source.belief = source.belief.healed()
