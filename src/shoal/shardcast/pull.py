"""Fills a store from several sources at once, none of which is believed in anything but the origin's signature.

A thread per source waits for new heads, one per source and package for new pieces, and a few fetch pieces, each from a
source drawn by `choose`. Every piece is asked for once; what a stalled, slow or lying source did not deliver goes back
and is asked of another. A relay is a puller that mirrors everything, with a server beside it.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from blake3 import blake3

from shoal.errors import ShardcastError, ShoalError, StorageError, WaitError
from shoal.keys import Key, checked_address
from shoal.shardcast.assemble import assemble, check_made, made_root
from shoal.shardcast.choose import Belief, choose
from shoal.shardcast.job import Job, Offer
from shoal.shardcast.records import (
    LARGEST_PIECE,
    MIB,
    MOST_HEAD,
    MOST_LINE,
    MOST_MANIFEST,
    MOST_SHORT_LINE,
    Entry,
    Head,
    Piece,
    read_head,
)
from shoal.shardcast.route import route
from shoal.shardcast.store import FILES, HEAD, MANIFEST, Index, Store, check_package, take_hold
from shoal.shardcast.wire import Connection, LieError, Pace, SourceError

PER_SOURCE = 2  # transfers from one source at once: one is hashed while the other arrives
MOST_WORKERS = 8
RUN_BYTES = 32 * MIB  # asked for in one request
RUN_SECONDS = 0.5  # no request should take longer than this at the speed that is believed
CHUNK = MIB  # BLAKE3 is faster on a whole subtree than on parts of it
FAR_BELOW = 0.1  # of the best other source's speed: such a transfer is given up
POLL_S = 20.0  # one long poll
PLAIN_POLL_S = 0.1  # between looks at a server that does not wait by itself
ENOUGH_QUEUED = 64  # pieces known and not yet fetched; no need to ask for more


@dataclass(slots=True)
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


class Puller:
    """Keeps a store up to date. Use it as a context manager; the threads end with it.

    The origin's address is all that is trusted. `run` may be left open: then the first head decides, for good.
    """

    def __init__(
        self,
        store: Store,
        sources: Sequence[str],
        origin: str,
        run: str | None = None,
        *,
        mirror: bool = False,
        name: str = "",
        own_url: str = "",
        key: Key | None = None,
        stall_s: float = 5.0,
        keep_made: int = 2,
        seed: int | None = None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not sources:
            raise ShardcastError("no source: give the URL of at least one relay or origin")
        self.store = store
        self.origin = checked_address(origin)
        self.run = run
        self.sources = [Source(url.rstrip("/")) for url in dict.fromkeys(sources)]
        self.counts: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self._mirror = mirror
        self._headers = {"Shoal-Node": name, "Shoal-Url": own_url} if name or own_url else {}
        self._key = key
        self._stall_s = stall_s
        self._keep_made = keep_made
        self._rng = Random(seed)
        self._on_note = on_note
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._live: set[Connection] = set()
        self._checked: set[str] = set()
        self._wanted: dict[str, int] = {}  # package -> how many fetches need it
        self._cleanup = ExitStack()
        self._head: Head | None = None

    # ---- life

    def __enter__(self) -> "Puller":
        self._cleanup.enter_context(self.store.writing())
        try:
            self._head = self.store.head(self.origin, self.run)
        except BaseException:
            self._cleanup.close()
            raise
        if self._head is not None:
            self.run = self._head.run
        self._plan()
        for source in self.sources:
            self._thread(self._watch_head, source)
        for _ in range(min(MOST_WORKERS, PER_SOURCE * len(self.sources))):
            self._thread(self._work)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            live = list(self._live)
        for connection in live:
            connection.interrupt()
        for thread in self._threads:
            thread.join(self._stall_s)
        for job in self.jobs.values():
            job.close()
        self._cleanup.close()

    @property
    def _threads(self) -> list[threading.Thread]:
        mark = f"cast-{id(self)}"
        return [thread for thread in threading.enumerate() if thread.name == mark]

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, name=f"cast-{id(self)}", daemon=True).start()

    # ---- what callers ask

    @property
    def head(self) -> Head | None:
        """The newest head seen."""
        return self._head

    def latest(self, wait_s: float = 0.0, after: int = -1, *, closed: bool = False) -> int | None:
        """The newest version's number, once it is above `after`; None if there is none in time.

        A version counts from its first piece on; with `closed`, once it is complete at the origin.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            while True:
                newest = self._head.newest(closed=closed) if self._head else None
                if newest is not None and newest > after:
                    return newest
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return None
                self._changed.wait(left)

    def held(self) -> dict[int, str]:
        """Versions that are whole on this disk, number -> root."""
        held = {}
        for name in self.store.packages():
            index = Index(self.store.folder(name))
            with suppress(ShardcastError):
                index.refresh()
            if index.closing is not None and index.opening is not None and index.opening.kind == "full":
                held[index.opening.number] = index.closing.root
        for number, folder in self.store.made().items():
            with suppress(OSError, IndexError):
                held[number] = made_root(folder)
        return held

    def fetch(
        self,
        number: int | None = None,
        wait_s: float = 60.0,
        on_progress: Callable[[int, int | None], None] | None = None,
    ) -> Path:
        """A version's files, complete and checked; the newest one's if no number is given.

        `wait_s` is how long nothing at all may arrive; the error then names what is missing and what each source said.
        """
        version = self.latest(wait_s) if number is None else number
        moved, mark = time.monotonic(), -1
        while True:
            head = self._head
            way = route(head.packages, self.held(), version) if head and version is not None else None
            if way is not None and version is not None and self._offers(way):
                with self._need(way) as jobs:
                    while not all(job.finished for job in jobs):
                        self._raise_if_dead(jobs)
                        done = sum(job.done_bytes for job in jobs)
                        if on_progress is not None:
                            on_progress(done, _total(jobs))
                        if done != mark:
                            moved, mark = time.monotonic(), done
                        elif time.monotonic() - moved > wait_s:
                            raise WaitError(self._missing(version, jobs, wait_s))
                        if any(job.dropped for job in jobs) or not self._offers(way):
                            break
                        with self._changed:
                            self._changed.wait(0.1)
                    else:
                        if on_progress is not None:
                            on_progress(sum(job.done_bytes for job in jobs), _total(jobs))
                        with suppress(FileNotFoundError):  # a newer head took it off the disk this moment
                            if (path := self._hand_out(version, way)) is not None:
                                return path
            if self._closed or time.monotonic() - moved > wait_s:
                raise WaitError(self._missing(version, [], wait_s))
            with self._changed:
                self._changed.wait(0.1)
            if number is None:
                version = self.latest()

    def _offers(self, way: Sequence[Entry]) -> bool:
        """False once a newer head has taken back or replaced one of the packages: nobody will send it any more."""
        head = self._head
        listed = {entry.name for entry in head.packages} if head else set()
        return head is not None and not any(e.name not in listed and _retracted(e.name, head) for e in way)

    def _hand_out(self, version: int, way: list[Entry]) -> Path | None:
        """The files of a version whose packages are here, hashed again unless this process fetched them itself."""
        if len(way) == 1 and way[0].kind == "full":
            return self._checked_files(way[0].name)
        if not way:
            made = self.store.made().get(version)
            if made is not None:
                return self._checked_made(made)
            full = next((n for n in self.store.packages() if n.startswith(f"{version:06d}-full-")), None)
            return self._checked_files(full) if full else None
        made = assemble(self.store, way, self._checked_files, self._keep_made)
        self._checked.add(made.name)
        return made / FILES

    def _checked_made(self, folder: Path) -> Path:
        if folder.name not in self._checked:
            try:
                check_made(folder)
            except (ShardcastError, ValueError):
                self.store.remove(folder.name)
                raise
            self._checked.add(folder.name)
        return folder / FILES

    def _checked_files(self, name: str) -> Path:
        if name not in self._checked:
            hold = take_hold(self.store.folder(name))  # a newer head may want it gone while it is hashed
            if hold is None:
                raise FileNotFoundError(name)
            try:
                try:
                    check_package(self.store.folder(name), self.origin)
                finally:
                    os.close(hold)
            except ShardcastError:
                with self._changed:
                    self.jobs.pop(name, None)
                    self.store.remove(name)
                raise
            self._checked.add(name)
        return self.store.folder(name) / FILES

    @contextmanager
    def _need(self, entries: Sequence[Entry]) -> Iterator[list[Job]]:
        """Jobs for the packages; they stay, whatever the head says, until the block ends."""
        with self._changed:
            for entry in entries:
                self._wanted[entry.name] = self._wanted.get(entry.name, 0) + 1
            jobs = [self._job(entry) for entry in entries]
            self._changed.notify_all()
        try:
            yield jobs
        finally:
            with self._changed:
                for entry in entries:
                    self._wanted[entry.name] -= 1
                    if not self._wanted[entry.name]:
                        del self._wanted[entry.name]

    def _raise_if_dead(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.error is not None:
                error, job.error = job.error, None
                raise error

    def _missing(self, version: int | None, jobs: list[Job], wait_s: float) -> str:
        if jobs:
            what = "; ".join(f"{job.name}: {job.done_bytes:,} of {job.total or 0:,} bytes" for job in jobs)
        else:
            offered = sorted({entry.number for entry in self._head.packages}) if self._head else "nothing"
            what = f"the head offers {offered}"
        said = "; ".join(f"{s.url}: {s.said.removeprefix(f'{s.url}: ') or 'nothing wrong'}" for s in self.sources)
        which = "the newest version" if version is None else f"version {version}"
        return f"{which}: nothing came for {wait_s:.0f} s ({what}). Sources: {said}"

    # ---- heads

    def _watch_head(self, source: Source) -> None:
        connection = self._connection(source)
        while not self._closed:
            sequence = self._head.sequence if self._head else -1
            began = time.monotonic()
            try:
                query = f"{HEAD}?after={sequence}&wait={POLL_S:.0f}" if sequence >= 0 else f"{HEAD}?wait={POLL_S:.0f}"
                answer = connection.get(query, pace=Pace(self._stall_s), wait_s=POLL_S)
                if answer.status == 200:
                    self._take_head(source, answer.read(MOST_HEAD))
                else:
                    answer.drop()
                    if answer.status not in (304, 404):
                        raise SourceError(f"{source.url}: answered {answer.status} for the head")
                source.failures = 0
            except LieError as error:
                self._lied(source, str(error))
            except (SourceError, ShardcastError) as error:
                self._failed(source, str(error))
            # A server that does not wait by itself is asked again a little later, a bad one when its pause is over.
            pause = max(source.paused_until - time.monotonic(), PLAIN_POLL_S if time.monotonic() - began < 0.05 else 0)
            newer = self._head is not None and self._head.sequence > sequence
            if pause > 0 and not newer:
                self._rest(pause)
        self._release(source, connection, keep=False)

    def _take_head(self, source: Source, data: bytes) -> None:
        try:
            head = read_head(data, self.origin, self.run)
        except ShardcastError as error:
            raise LieError(f"{source.url}: {error}") from None
        with self._changed:
            before = self._head
            if before is not None and head.sequence < before.sequence:
                source.said = (
                    f"offers head {head.sequence}, older than {before.sequence}, which was seen before; refused"
                )
                self.counts["rollbacks_refused"] += 1
                return
            if before is not None and head.sequence == before.sequence:
                return
            self.store.write_head(data)
            self._head = head
            self.run = head.run
            self._plan()
            self._changed.notify_all()

    def _plan(self) -> None:
        """Brings jobs and packages on the disk in line with the head."""
        head = self._head
        if head is None:
            return
        listed = {entry.name: entry for entry in head.packages}
        for name in {*self.store.packages(), *self.jobs} - listed.keys():
            kept = self._wanted.get(name) and not _retracted(name, head)
            if kept or (
                self.store.folder(name).exists() and not self.store.remove(name) and not _retracted(name, head)
            ):
                continue
            if (job := self.jobs.pop(name, None)) is not None:
                job.dropped = True
                job.close()
            self._checked.discard(name)
        for name, job in self.jobs.items():
            if name in listed:
                job.entry = listed[name]
        if self._mirror:
            for entry in head.packages:
                self._job(entry)

    def _job(self, entry: Entry) -> Job:
        job = self.jobs.get(entry.name)
        if job is None:
            job = self.jobs[entry.name] = Job(self.store.folder(entry.name), entry, self.origin)
            if not job.finished:
                for source in self.sources:
                    job.offers[source.url] = Offer()
                    self._thread(self._watch_manifest, source, job)
        return job

    # ---- manifests

    def _watch_manifest(self, source: Source, job: Job) -> None:
        connection = self._connection(source)
        offer = job.offers[source.url]
        offset = bad = 0
        while not (self._closed or job.finished or job.dropped or offer.ended):
            if len(offer.queue) > ENOUGH_QUEUED and job.queued(source.url):
                self._rest(0.02)
                continue
            pause = source.paused_until - time.monotonic()
            if pause > 0:
                self._rest(pause)
                continue
            began = time.monotonic()
            wait = POLL_S / 2
            path = f"{job.name}/{MANIFEST}?wait={wait:.0f}"
            plain = 0.0
            try:
                answer = connection.get(path, first=offset, pace=Pace(self._stall_s), wait_s=wait)
                if answer.status in (200, 206):
                    data = answer.read(MOST_MANIFEST)
                    data = data[offset:] if answer.status == 200 else data
                    size, new = self._take_lines(source, job, data)
                    if not new and size and offset:
                        raise SourceError(f"{source.url}: sends the same manifest lines again")
                    offset += size
                    bad = 0
                    plain = 0.0 if size else PLAIN_POLL_S  # a line that is not whole yet
                else:
                    answer.drop()
                    here = answer.header("Content-Range").removeprefix("bytes */")
                    if answer.status == 416 and here.isdigit() and int(here) < offset:
                        offset = 0  # it began anew
                    elif answer.status not in (404, 416):
                        raise SourceError(f"{source.url}: answered {answer.status} for a manifest")
                    plain = PLAIN_POLL_S
            except LieError as error:
                offset, bad = 0, bad + 1
                self._lied(source, str(error))
            except SourceError as error:
                offset, bad = 0, bad + 1
                self._failed(source, str(error))
            except (ShoalError, OSError) as error:
                self._stuck(job, error)
            if bad:
                self._rest(min(5.0, 0.1 * 2.0 ** min(bad, 8)))
            elif plain and time.monotonic() - began < 0.05:
                self._rest(plain)
        self._release(source, connection, keep=False)

    def _take_lines(self, source: Source, job: Job, data: bytes) -> tuple[int, bool]:
        """Hands whole lines to the job; how many bytes they were, and whether any was new."""
        size = data.rfind(b"\n") + 1
        new = False
        if len(data) - size > MOST_LINE:
            raise LieError(f"{source.url}: a manifest line of more than {MOST_LINE:,} bytes")
        for line in data[:size].splitlines(keepends=True):
            # Before it is parsed: a line may take many times its size then.
            if len(line) > (MOST_LINE if line.startswith(b'["closing"') else MOST_SHORT_LINE):
                raise LieError(f"{source.url}: a manifest line of {len(line):,} bytes")
            try:
                new |= job.listed(source.url, line)
            except StorageError:
                raise
            except ShardcastError as error:
                raise LieError(f"{source.url}: {error}") from None
        if new:
            with self._changed:
                self._finish(job)
                self._changed.notify_all()
        return size, new

    # ---- pieces

    def _work(self) -> None:
        buffer = memoryview(bytearray(LARGEST_PIECE))
        while True:
            with self._changed:
                while (task := self._pick()) is None:
                    if self._closed:
                        return
                    self._changed.wait(self._until_ready())
                source, job, run = task
                source.busy += 1
            try:
                self._transfer(source, job, run, buffer)
            finally:
                with self._changed:
                    source.busy -= 1
                    self._changed.notify_all()

    def _pick(self) -> tuple[Source, Job, list[Piece]] | None:
        """What a free worker does next: the newest version first, from a source drawn among those that can serve it."""
        now = time.monotonic()
        ready = [s for s in self.sources if s.busy < PER_SOURCE and s.paused_until <= now]
        if self._closed or not ready:
            return None
        for job in sorted(self.jobs.values(), key=self._priority):
            if job.finished or job.dropped or job.error is not None:
                continue
            with job.lock:
                able = [source for source in ready if job.queued(source.url)]
                if able:
                    source = able[choose([s.belief for s in able], self._rng)]
                    speed = source.belief.bytes_per_s
                    most = RUN_BYTES if speed is None else min(RUN_BYTES, int(speed * RUN_SECONDS))
                    return source, job, job.take_run(source.url, most)
        return None

    def _priority(self, job: Job) -> tuple[bool, int, bool]:
        return (job.name not in self._wanted, -job.entry.number, job.entry.kind == "full")

    def _until_ready(self) -> float:
        now = time.monotonic()
        pauses = [s.paused_until - now for s in self.sources if s.paused_until > now]
        return min([1.0, *pauses])

    def _transfer(self, source: Source, job: Job, run: list[Piece], buffer: memoryview) -> None:
        connection = self._connection(source)
        size = sum(piece.size for piece in run)
        left = list(run)
        keep = False
        began = time.monotonic()
        try:
            pace = Pace(self._stall_s, lambda: self._least(source, job, left))
            first = run[0].offset
            path = f"{job.name}/{FILES}/{run[0].file}"
            answer = connection.get(path, first=first, last=first + size - 1, pace=pace)
            if answer.status != 206 or answer.length != size:
                answer.drop()
                raise SourceError(f"{source.url}: answered {answer.status} for pieces that it lists")
            for piece in run:
                self._receive(source, job, piece, answer.fill, buffer)
                left.remove(piece)
                self._finish(job)
            keep = True
            with self._changed:
                self.counts["bytes_fetched"] += size
                self.counts["pieces_fetched"] += len(run)
                source.failures = 0
                source.belief = source.belief.delivered(size / max(time.monotonic() - began, 1e-6))
                self._heal()
        except LieError as error:
            self._lied(source, str(error))
        except SourceError as error:
            if not job.dropped:
                self._failed(source, str(error))
        except (ShoalError, OSError) as error:
            self._stuck(job, error)
        finally:
            job.give_back(left)
            self._release(source, connection, keep=keep)

    def _receive(
        self, source: Source, job: Job, piece: Piece, fill: Callable[[memoryview], None], buffer: memoryview
    ) -> None:
        hasher = blake3()
        for at in range(0, piece.size, CHUNK):
            chunk = buffer[at : min(at + CHUNK, piece.size)]
            fill(chunk)
            hasher.update(chunk)
        if hasher.hexdigest() != piece.hash:
            raise LieError(f"{source.url}: piece {piece.index} of {job.name} is not what {self.origin} signed")
        job.store(piece, buffer[: piece.size])

    def _least(self, source: Source, job: Job, left: list[Piece]) -> float:
        """Below this many bytes a second a transfer is given up: somebody else has the piece and is far faster."""
        now = time.monotonic()
        others = [
            other.belief.success * (other.belief.bytes_per_s or 0.0)
            for other in self.sources
            if other is not source
            and other.paused_until <= now
            and left
            and left[0].index in job.offers[other.url].have
        ]
        return FAR_BELOW * max(others, default=0.0)

    def _finish(self, job: Job) -> None:
        try:
            if job.finish():
                with self._changed:
                    self._checked.add(job.name)
                    self.counts["packages_fetched"] += 1
                    self._changed.notify_all()
        except (ShoalError, OSError) as error:
            self._stuck(job, error)

    # ---- what goes wrong

    def _failed(self, source: Source, why: str) -> None:
        """Less belief in a source, and a pause that doubles up to some seconds."""
        with self._changed:
            if self._closed:
                return
            source.failures += 1
            source.said = why
            source.belief = source.belief.failed()
            source.paused_until = time.monotonic() + min(5.0, 0.05 * 2 ** min(source.failures, 10))
            self.counts["failures"] += 1
            self._heal()
            self._changed.notify_all()
        self._on_note(why)

    def _lied(self, source: Source, why: str) -> None:
        """A source that lies is left alone, each time four times longer."""
        self._failed(source, why)
        with self._changed:
            source.lies += 1
            source.paused_until = time.monotonic() + min(300.0, 4.0 ** min(source.lies - 1, 5))
            self.counts["lies"] += 1

    def _stuck(self, job: Job, error: Exception) -> None:
        """Our own disk refuses: a fetch is told; a mirror tries again later, with all that it has."""
        with self._changed:
            if job.dropped or self._closed:
                return
            job.error = error
            self._changed.notify_all()
        self._on_note(f"{job.name}: {error}")
        if self._mirror:
            self._rest(2.0)
            job.error = None

    def _heal(self) -> None:
        for source in self.sources:
            source.belief = source.belief.healed()

    def _rest(self, seconds: float) -> None:
        """Sleeps, unless the puller is closed."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    # ---- connections

    def _connection(self, source: Source) -> Connection:
        with self._changed:
            connection = source.idle.pop() if source.idle else None
            if connection is None:
                connection = Connection(source.url, headers=self._headers, key=self._key)
            self._live.add(connection)
            return connection

    def _release(self, source: Source, connection: Connection, *, keep: bool) -> None:
        with self._changed:
            self._live.discard(connection)
            if keep and not self._closed:
                source.idle.append(connection)
                return
        connection.close()


def _retracted(name: str, head: Head) -> bool:
    """True if the head lists other content under the package's number, or has gone back below it."""
    number, kind, _ = name.split("-")
    newest = head.newest()
    replaced = any(e.number == int(number) and e.kind == kind for e in head.packages)
    return replaced or newest is None or int(number) > newest


def _total(jobs: Sequence[Job]) -> int | None:
    totals = [job.total for job in jobs]
    return None if None in totals else sum(total or 0 for total in totals)
