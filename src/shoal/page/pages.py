"""A run's pages while they are served: its files, followed by one thread, and the documents made of them."""

import asyncio
import hashlib
import logging
import mimetypes
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from importlib import resources
from typing import Any

from shoal.coordinator.archive import has_records, reading
from shoal.errors import ShoalError
from shoal.page.documents import Busy, Documents
from shoal.page.rollouts import RolloutQuery, StepIndex, rollouts_document
from shoal.page.run import live_document
from shoal.page.source import RunFiles
from shoal.shardcast.serve.rate_limit import Rates

LOG = logging.getLogger(__name__)
MAX_LOGGED = 20
LOOK_S = 0.5
# How often an open page hears how long roles have been waiting, though nothing is written meanwhile.
BEAT_S = 5.0
# Of one network, where it is not this machine itself; a page that is opened asks about ten times.
REQUESTS_PER_S, BURST = 20.0, 200.0
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
Document = Mapping[str, object]


class Missing(ShoalError):
    """What was asked for is not there; the text says why."""


class Pages:
    """A run's pages: its files, followed by one thread, and the documents made of them."""

    def __init__(self, files: RunFiles, *, public: bool = False) -> None:
        self.files = files
        self.public = public
        self.documents = Documents()
        self.decoded = Documents("page-decoded")
        """Made of rollout files: decoding those of a step takes seconds, for which no other document waits."""
        self.index = StepIndex()
        self.streams: Counter[str] = Counter()
        """Open event streams, by the network that they go to."""
        self.rates = Rates(REQUESTS_PER_S, BURST)
        self._changed = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.static = _static_files()

    async def follow(self) -> None:
        """Looks for news for as long as the server runs. A file that cannot be read now may be readable later.

        Whatever else goes wrong is logged once: a page that stays as it was, without a word, would be believed.
        """
        seen: tuple[int, ...] = ()
        logged: set[str] = set()
        self._loop = asyncio.get_running_loop()
        while True:
            try:
                await asyncio.to_thread(self.files.refresh)
            except (OSError, ShoalError):
                pass
            except Exception as error:
                if repr(error) not in logged and len(logged) < MAX_LOGGED:
                    logged.add(repr(error))
                    LOG.exception("the run's files could not be read to their end")
            if (now := self.revision) != seen:
                seen = now
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(LOOK_S)

    async def warm(self) -> None:
        """Reads the newest rollouts before anybody asks: the process that decodes them takes seconds to start."""
        make = self.recorded(lambda db: rollouts_document(db, self.files, self.index, RolloutQuery()))
        with suppress(ShoalError, Busy):
            await self.decoded.get("/data/rollouts?", self.revision[2], make)

    @property
    def revision(self) -> tuple[int, int, int]:
        revision = self.files.revision
        return revision.steps, revision.roles, revision.records

    async def events(self, network: str) -> AsyncIterator[bytes]:
        """Server-sent events: the live part of the run's page, when something changed and at every beat."""
        self.streams[network] += 1
        try:
            while not self._stopping:
                changed = self._changed
                as_of = self.revision, int(time.monotonic() / BEAT_S)
                live = await self.documents.get("live", as_of, lambda: self.live())
                yield b"event: news\ndata: " + live + b"\n\n"
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), BEAT_S)
        finally:
            self.streams -= Counter({network: 1})  # which forgets a network that has none left

    def stop(self) -> None:
        """Ends all event streams, so that a server that is stopped need not cut them off. From any thread."""
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended, and with it all streams
                self._loop.call_soon_threadsafe(lambda: self._changed.set())

    def live(self) -> Document:
        steps, roles, records = self.revision
        return {"revision": {"steps": steps, "roles": roles, "records": records}, **live_document(self.files)}

    def recorded(self, make: Callable[[Any], Document | None]) -> Callable[[], Document]:
        """A document that is made of the coordinator's records."""

        def made() -> Document:
            run = self.files.run
            if run is None:
                raise Missing(self.files.refused or "this run's config is not here")
            if not has_records(run):
                raise Missing(
                    "the coordinator's records are not here: it has not started yet, or it ran on another machine"
                )
            with reading(run) as db:
                document = make(db)
            if document is None:
                raise Missing("it is not on record: it never was, or its bytes were removed after training")
            return document

        return made


def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """(bytes, type, ETag) by name: read once, so that no request reaches the disk."""
    found = {}
    for folder in (resources.files("shoal.page") / "static", resources.files("shoal.page") / "static" / "vendor"):
        for file in folder.iterdir():
            suffix = f".{file.name.rpartition('.')[2]}"
            if file.is_file() and suffix in TYPES:
                data = file.read_bytes()
                kind = TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                found[file.name] = data, kind, f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    return found
