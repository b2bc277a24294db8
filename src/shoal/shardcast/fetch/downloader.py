"""Parallel downloader: fills a store from several untrusted sources; only the origin's signature is believed.

A thread per source waits for new heads, one per source and package for new pieces, and a few fetch pieces, each from a
source drawn by `choose`. Every piece is asked for once; what a stalled, slow or lying source did not deliver goes back
and is asked of another. A relay is a puller that mirrors everything, with a server beside it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from random import Random
from typing import Self

from blake3 import blake3

from shoal.bandwidth import RECEIVED
from shoal.crypto.keys import Key, checked_address
from shoal.errors import ShardcastError, ShoalError, StorageError
from shoal.shardcast.fetch.http import LieError, Pace, SourceError
from shoal.shardcast.fetch.package import Job
from shoal.shardcast.fetch.polling import Polling
from shoal.shardcast.fetch.room import Room
from shoal.shardcast.fetch.selection import choose
from shoal.shardcast.fetch.sources import PER_SOURCE, Source, Sources
from shoal.shardcast.format.manifest import FILES, MANIFEST
from shoal.shardcast.format.records import (
    LARGEST_PIECE,
    MAX_HEAD,
    MAX_LINE,
    MAX_MANIFEST,
    MAX_SHORT_LINE,
    MIB,
    Entry,
    Head,
    Piece,
    read_head,
)
from shoal.shardcast.format.store import HEAD, Store, is_made

MAX_WORKERS = 8
RUN_BYTES = 32 * MIB  # asked for in one request
RUN_SECONDS = 0.5  # no request should take longer than this at the speed that is believed
CHUNK = MIB  # BLAKE3 is faster on a whole subtree than on parts of it
POLL_S = 20.0  # one long poll
# What a source does not have yet: an object store that may not be listed says 403 for it.
NOT_THERE = (403, 404)
ENOUGH_QUEUED = 64  # pieces known and not yet fetched; no need to ask for more
MIN_SHARE = 48 << 10  # bytes per second of one transfer; servers cut off those below a third of that
REST_S = 2.0  # before a disk that refused is tried again
KEEP = 4  # times a whole version on the disk of a client; a validator goes back to those before the newest


class Intake:
    """Threads that keep heads, jobs and what is on the disk in line with what the origin offers.

    None of them ends by an error: what a source does wrong is held against it, what our disk refuses is told to those
    that wait for the package, and tried again.
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
        seed: int | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        nearest: int = 0,
        keep: int = KEEP,
        max_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`max_bytes` says how much may be in the store at the most now."""
        if not sources:
            raise ShardcastError("no source: give the URL of at least one relay or origin")
        self.store = store
        self.origin = checked_address(origin)
        self.run = run
        self.counts: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self._changed = threading.Condition(threading.RLock())
        headers = {"Shoal-Node": name, "Shoal-Url": own_url} if name or own_url else {}
        self.sources = Sources(sources, headers, key, self._changed, self.counts, on_note, nearest)
        self._mirror = mirror
        self.room = Room(store, keep, lambda name: name in self._wanted, self._lose, max_bytes)
        self._assembling = threading.Lock()  # two threads may want the same version
        self._stall_s = stall_s
        self._rng = Random(seed)
        self._on_note = on_note
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._workers = 0
        self._resuming = threading.Lock()  # one package is hashed at a time
        self._checked: set[str] = set()  # packages that this process has seen to be right
        self._useless: set[str] = set()  # packages that are here, and lead nowhere
        self._wanted: Counter[str] = Counter()  # package -> how many fetches need it
        self._cleanup = ExitStack()
        self._head: Head | None = None

    def __enter__(self) -> Self:
        self._cleanup.enter_context(self.store.writing())
        try:
            if (head := self.store.head(self.origin, self.run)) is not None:
                self.run, self._head = head.run, head
                self._plan(head)
        except BaseException:
            self.__exit__()
            raise
        for source in self.sources:
            self._thread(self._watch_head, source)
        self._employ()
        return self

    def also_from(self, urls: Iterable[str]) -> None:
        """Takes more sources, as when a relay joins a run that goes on."""
        with self._changed:
            if self._closed:
                return
            for source in self.sources.add(urls):
                for job in self.jobs.values():
                    job.add_source(source.url)
                    if job.asked and not job.finished:
                        self._thread(self._watch_manifest, source, job)
                self._thread(self._watch_head, source)
            self._employ()

    def _employ(self) -> None:
        """As many threads that fetch pieces as the sources can keep busy."""
        wanted = min(MAX_WORKERS, PER_SOURCE * len(self.sources), _side_by_side(RECEIVED.bytes_per_s))
        for _ in range(wanted - self._workers):
            self._thread(self._work)
        self._workers = max(self._workers, wanted)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        self.sources.close()
        deadline = time.monotonic() + self._stall_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for job in list(self.jobs.values()):
            job.close()  # a transfer that is still under way writes nothing any more
        self._cleanup.close()

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="cast", daemon=True)
        with self._changed:
            self._threads = [other for other in self._threads if other.is_alive()]
            thread.start()
            self._threads.append(thread)

    # ---- heads

    def _watch_head(self, source: Source) -> None:
        connection = self.sources.connection(source)
        polling = Polling()
        tag = None
        while not (self._closed or source.gone):
            sequence = self._head.sequence if self._head else -1
            began = time.monotonic()
            try:
                query = f"{HEAD}?after={sequence}&wait={POLL_S:.0f}" if sequence >= 0 else f"{HEAD}?wait={POLL_S:.0f}"
                answer = connection.get(query, pace=Pace(self._stall_s), wait_s=POLL_S, unless=tag)
                if answer.status == 200:
                    self._take_head(source, answer.read(MAX_HEAD))
                    tag = answer.tag
                else:
                    answer.drop()
                    if answer.status not in (304, *NOT_THERE):
                        raise SourceError(f"{source.url}: answered {answer.status} for the head")
                    if answer.status in NOT_THERE:
                        source.said = f"has no head yet (answered {answer.status})"
                    else:
                        self.counts["heads_unchanged"] += 1
                source.failures = 0
            except LieError as error:
                self.sources.lied(source, str(error))
            except SourceError as error:
                self.sources.failed(source, str(error))
            except (ShoalError, OSError) as error:  # our own disk: the head is taken when it has room again
                self._on_note(f"head: {error}")
                self._rest(REST_S)
            newer = self._head is not None and self._head.sequence > sequence
            # A source that does not wait by itself is asked again a little later, a bad one when its pause is over.
            pause = polling.pause(new=newer, asked=began, wait_s=POLL_S)
            if not newer:
                self._rest(max(pause, source.paused_until - time.monotonic()))
        self.sources.release(source, connection)

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
            self._plan(head)
            self.run, self._head = head.run, head
            self._changed.notify_all()

    def _plan(self, head: Head) -> None:
        """Brings jobs and packages on the disk in line with a head."""
        listed = {entry.name: entry for entry in head.packages}
        for name in {*self.store.packages(), *self.jobs} - listed.keys():
            gone = retracted(name, head)
            if not gone and name in self._wanted:
                continue
            if self.store.folder(name).exists() and not self.store.remove(name) and not gone:
                continue
            self._lose(name)
            self._useless.discard(name)
        self._remove_retracted(head)
        for name, job in self.jobs.items():
            if name in listed:
                job.entry = listed[name]
        if self._mirror:
            for entry in head.packages:
                self._job(entry)

    def _remove_retracted(self, head: Head) -> None:
        """Versions that were put together here and then taken back: no package of theirs says so."""
        gone = set(head.retracted) - {entry.root for entry in head.packages}
        for (_, root), folder in self.store.whole().items() if gone else ():
            if root in gone and is_made(folder.name) and self.store.remove(folder.name):
                self._checked.discard(folder.name)

    def _drop(self, name: str) -> None:
        if (job := self.jobs.pop(name, None)) is not None:
            job.dropped = True
            job.close()

    def _lose(self, name: str) -> None:
        """A package is no longer on the disk."""
        self._drop(name)
        self._checked.discard(name)

    def _job(self, entry: Entry) -> Job:
        job = self.jobs.get(entry.name)
        if job is None:
            urls = [source.url for source in self.sources]
            job = self.jobs[entry.name] = Job(self.store.folder(entry.name), entry, self.origin, urls)
            self._thread(self._begin, job)
        return job

    def _begin(self, job: Job) -> None:
        """Takes up what is here of a package, however long that is hashed, then asks every source for the rest."""
        while not (self._closed or job.dropped or job.resumed):
            try:
                with self._resuming if job.folder.exists() else nullcontext():
                    job.resume()
            except (ShoalError, OSError) as error:
                self._stuck(job, error)
                self._rest(REST_S)
        with self._changed:
            self._changed.notify_all()
        with self._changed:
            if not (self._closed or job.finished or job.dropped):
                job.asked = True
                for source in self.sources:
                    self._thread(self._watch_manifest, source, job)

    # ---- manifests

    def _watch_manifest(self, source: Source, job: Job) -> None:
        connection = self.sources.connection(source)
        offer = job.offers[source.url]
        offset = bad = 0
        polling = Polling()
        while not (self._closed or source.gone or job.finished or job.dropped or offer.ended):
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
            new = False
            try:
                answer = connection.get(path, first=offset, pace=Pace(self._stall_s), wait_s=wait)
                if answer.status in (200, 206):
                    data = answer.read(MAX_MANIFEST)
                    data = data[offset:] if answer.status == 200 else data
                    size, unknown = self._take_lines(source, job, data)
                    if not unknown and size and offset:
                        raise SourceError(f"{source.url}: sends the same manifest lines again")
                    offset += size
                    bad = 0
                    new = size > 0  # otherwise a line that is not whole yet
                else:
                    answer.drop()
                    if answer.status == 416 and answer.says_size_below(offset):
                        offset = 0  # it started again
                    elif answer.status not in (416, *NOT_THERE):
                        raise SourceError(f"{source.url}: answered {answer.status} for a manifest")
            except LieError as error:
                offset, bad = 0, bad + 1
                self.sources.lied(source, str(error))
            except SourceError as error:
                offset, bad = 0, bad + 1
                self.sources.failed(source, str(error))
            except (ShoalError, OSError) as error:
                bad += 1
                self._stuck(job, error)
            if bad:
                self._rest(min(5.0, 0.1 * 2.0 ** min(bad, 8)))
            else:
                self._rest(polling.pause(new=new, asked=began, wait_s=wait))
        self.sources.release(source, connection)

    def _take_lines(self, source: Source, job: Job, data: bytes) -> tuple[int, bool]:
        """Hands whole lines to the job; how many bytes they were, and whether any was new."""
        size = data.rfind(b"\n") + 1
        new = False
        if len(data) - size > MAX_LINE:
            raise LieError(f"{source.url}: a manifest line of more than {MAX_LINE:,} bytes")
        for line in data[:size].splitlines(keepends=True):
            # Before it is parsed: a line may take many times its size then.
            if len(line) > (MAX_LINE if line.startswith(b'["closing"') else MAX_SHORT_LINE):
                raise LieError(f"{source.url}: a manifest line of {len(line):,} bytes")
            try:
                new |= job.listed(source.url, line)
            except StorageError:
                raise
            except ShardcastError as error:
                raise LieError(f"{source.url}: {error}") from None
        if new:
            self._finish(job)
            with self._changed:
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
                    self._changed.wait(self.sources.until_ready())
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
        ready = self.sources.ready()
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

    def _transfer(self, source: Source, job: Job, run: list[Piece], buffer: memoryview) -> None:
        connection = self.sources.connection(source)
        size = sum(piece.size for piece in run)
        left = list(run)
        keep = False
        began = time.monotonic()

        def has_next(url: str) -> bool:
            return bool(left) and left[0].index in job.offers[url].have

        try:
            pace = Pace(self._stall_s, lambda: self.sources.least(source, has_next))
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
            self.sources.delivered(source, size, time.monotonic() - began)
        except LieError as error:
            self.sources.lied(source, str(error))
        except SourceError as error:
            if not job.dropped:
                self.sources.failed(source, str(error))
        except (ShoalError, OSError) as error:
            self._stuck(job, error)
        finally:
            job.give_back(left)
            self.sources.release(source, connection, keep=keep)

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

    def _finish(self, job: Job) -> None:
        while not (self._closed or job.dropped):
            try:
                if job.finish():
                    with self._changed:
                        self._checked.add(job.name)
                        self.counts["packages_fetched"] += 1
                        self._changed.notify_all()
                return
            except (ShoalError, OSError) as error:
                self._stuck(job, error)
                if not self._mirror:
                    return

    def _stuck(self, job: Job, error: Exception) -> None:
        """Our own disk refuses: a fetch is told; a mirror tries again later, with all that it has."""
        with self._changed:
            if job.dropped or self._closed:
                return
            job.error = error
            self._changed.notify_all()
        self._on_note(f"{job.name}: {error}")
        if self._mirror:
            self._rest(REST_S)
            job.error = None

    def _rest(self, seconds: float) -> None:
        """Sleeps, unless the intake is closed."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)


def _side_by_side(bytes_per_s: float | None) -> int:
    """Transfers at once that a limited line keeps fast enough for every server."""
    return MAX_WORKERS if bytes_per_s is None else max(1, int(bytes_per_s / MIN_SHARE))


def retracted(name: str, head: Head) -> bool:
    """True if the head lists other content under the package's number, or has gone back below it."""
    number, kind, _ = name.split("-")
    newest = head.newest()
    replaced = any(e.number == int(number) and e.kind == kind for e in head.packages)
    return replaced or newest is None or int(number) > newest
