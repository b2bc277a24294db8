"""Fetch client: the newest version, and a version's files, complete and checked.

Behind it an `Intake` brings in heads and packages; here it is decided which packages lead to a version, what is put
together from deltas, and what is hashed again before it is handed out.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import ShardcastError, WaitError
from shoal.shardcast.delta.assemble import DamagedError, UselessError, assemble, check_made
from shoal.shardcast.fetch.downloader import Intake, retracted
from shoal.shardcast.fetch.package import Job
from shoal.shardcast.fetch.room import NoRoomError
from shoal.shardcast.format.manifest import FILES, check_package
from shoal.shardcast.format.package_plan import route
from shoal.shardcast.format.records import Entry, Head
from shoal.shardcast.format.store import is_made, take_hold

LOOK_S = 0.1  # between looks at what nobody reports
MAX_TRIES = 3  # at a version whose parts on this disk turn out to be damaged


class Puller(Intake):
    """Keeps a store up to date. Use it as a context manager; the threads end with it.

    The origin's address is all that is trusted. `run` may be left open: then the first head decides, for good.
    """

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

    def facts(self) -> dict[str, float]:
        """What was fetched and refused so far, as a server's `/metrics` shows it."""
        return {f"{name}_total": float(value) for name, value in self.counts.items()}

    def held(self) -> dict[int, str]:
        """Versions that are whole on this disk, number -> root."""
        return dict(self.store.whole().keys())

    def fetch(
        self,
        number: int | None = None,
        wait_s: float = 60.0,
        on_progress: Callable[[int, int | None], None] = lambda _done, _total: None,
        *,
        root: str | None = None,
    ) -> Path:
        """A version's files, complete and checked; the newest one's if no number is given.

        `wait_s` is how long nothing at all may arrive; the error then names what is missing and what each source said.
        A version that cannot come any more is an error at once: a newer one is offered and it is not, or, where `root`
        says which content is meant, other content is. What is found damaged on this disk is fetched again.
        """
        files = self._fetch(number, wait_s, on_progress, root, even_without_room=True)
        assert files is not None
        return files

    def prefetch(self, number: int, wait_s: float = 60.0) -> None:
        """Brings in what a version is made of, and makes it, unless too much would be here then (`keep`).

        That happens while an older one is held: it is left to the `fetch` of who holds it and wants the new one.
        """
        self._fetch(number, wait_s, lambda _done, _total: None, None, even_without_room=False)

    def _fetch(
        self,
        number: int | None,
        wait_s: float,
        on_progress: Callable[[int, int | None], None],
        root: str | None,
        *,
        even_without_room: bool,
    ) -> Path | None:
        """None only where there is no room."""
        version = self.latest(wait_s) if number is None else number
        patience = _Patience(wait_s)
        tries = 0
        trouble: ShardcastError | None = None
        while True:
            way = None
            if (head := self._head) is not None and version is not None:
                if number is not None:
                    _check_offered(head, version, root)
                way = self._way(head, version)
            if way is None and trouble is not None:
                raise trouble
            if way is not None and version is not None and self._offers(way):
                path = None
                try:
                    with self._changed:
                        fits = self.room.for_packages(way, last_resort=even_without_room)
                    with self._need(way if fits else []) as jobs:
                        came = fits and self._await(version, way, jobs, patience, on_progress)
                        if came:
                            path = self._hand_out(version, way, even_without_room=even_without_room)
                    if path:
                        with self._changed:
                            self.room.forget_deltas(way)
                        return path
                except NoRoomError:
                    return None
                except (DamagedError, UselessError) as error:
                    trouble, tries = error, tries + 1
                    self._discard(error)
                    if tries == MAX_TRIES:
                        raise
                    continue
            if self._closed or patience.is_over:
                raise WaitError(self._missing(version, [], wait_s))
            with self._changed:
                self._changed.wait(LOOK_S)
            if number is None:
                version = self.latest()

    def _way(self, head: Head, version: int) -> list[Entry] | None:
        entries = [entry for entry in head.packages if entry.name not in self._useless]
        held = [key for key, folder in self.store.whole().items() if folder.name not in self._useless]
        return route(entries, held, version)

    def _await(
        self,
        version: int,
        way: Sequence[Entry],
        jobs: Sequence[Job],
        patience: "_Patience",
        on_progress: Callable[[int, int | None], None],
    ) -> bool:
        """True once all packages are here; False if one of them will not come and another way must be found."""
        while not all(job.finished for job in jobs):
            _raise_if_dead(jobs)
            done = sum(job.done_bytes for job in jobs)
            on_progress(done, _total(jobs))
            patience.saw(done, busy=not all(job.resumed for job in jobs))
            if patience.is_over:
                raise WaitError(self._missing(version, jobs, patience.seconds))
            if self._closed or any(job.dropped for job in jobs) or not self._offers(way):
                return False
            with self._changed:
                self._changed.wait(LOOK_S)
        on_progress(sum(job.done_bytes for job in jobs), _total(jobs))
        return True

    def _offers(self, way: Sequence[Entry]) -> bool:
        """False once a newer head has taken back or replaced one of the packages: nobody will send it any more."""
        head = self._head
        listed = {entry.name for entry in head.packages} if head else set()
        return head is not None and not any(e.name not in listed and retracted(e.name, head) for e in way)

    def _hand_out(self, version: int, way: list[Entry], *, even_without_room: bool) -> Path | None:
        """The files of a version whose packages are here, hashed again unless this process fetched them itself.

        None if a newer head took them off the disk this moment, NoRoomError if there would be too many versions here.
        """
        try:
            if not way:
                roots = {entry.root for entry in (self._head.packages if self._head else ())}
                whole = self.store.whole().items()
                usable = (f for (n, root), f in whole if n == version and root in roots and f.name not in self._useless)
                folder = next(usable, None)
                return folder and self._checked_files(folder.name)
            if len(way) == 1 and way[0].kind == "full":
                return self._checked_files(way[0].name)
            with self._assembling:
                with self._changed:
                    fits = self.room.to_assemble(way)
                if not fits and not even_without_room:
                    raise NoRoomError(f"version {version}: others are held here, and it would be too much with them")
                made = assemble(self.store, way, self._checked_files)
        except FileNotFoundError:
            return None
        self._checked.add(made.name)
        return made / FILES

    def _checked_files(self, name: str) -> Path:
        folder = self.store.folder(name)
        if name not in self._checked:
            hold = take_hold(folder)  # a newer head may want it gone while it is hashed
            if hold is None:
                raise FileNotFoundError(name)
            try:
                check_made(folder) if is_made(name) else check_package(folder, self.origin)
            except (ShardcastError, ValueError) as error:
                raise DamagedError(str(error), name) from error
            finally:
                os.close(hold)
            self._checked.add(name)
        return folder / FILES

    def _discard(self, error: DamagedError | UselessError) -> None:
        """Forgets a damaged package, so that it is fetched again; one that is useless, or in use, is not looked at."""
        with self._changed:
            self._checked.discard(error.name)
            gone = False
            if isinstance(error, DamagedError) and (gone := self.store.remove(error.name)):
                self._drop(error.name)
            if not gone:
                self._useless.add(error.name)
        self._on_note(str(error))

    @contextmanager
    def _need(self, entries: Sequence[Entry]) -> Iterator[list[Job]]:
        """Jobs for the packages; they stay, whatever the head says, until the block ends."""
        with self._changed:
            jobs = [self._job(entry) for entry in entries]
            for job in jobs:
                if job.name not in self._wanted:
                    job.error = None  # of a fetch before
                self._wanted[job.name] += 1
            self._changed.notify_all()
        try:
            for job in jobs:
                self._finish(job)  # all of it may be here, but for an end that the disk refused
            yield jobs
        finally:
            with self._changed:
                for job in jobs:
                    self._wanted[job.name] -= 1
                    if not self._wanted[job.name]:
                        del self._wanted[job.name]

    def _missing(self, version: int | None, jobs: Sequence[Job], wait_s: float) -> str:
        offered = f"the head offers {_numbers(self._head) or 'nothing'}"
        what = "; ".join(map(_progress, jobs)) or offered
        which = "the newest version" if version is None else f"version {version}"
        return f"{which}: nothing came for {wait_s:.0f} s ({what}). Sources: {self.sources.said()}"


def _progress(job: Job) -> str:
    names = job.lacking()
    more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
    lacking = f", {names[0]}{more} not whole" if names else ""
    return f"{job.name}: {job.done_bytes:,} of {job.total or 0:,} bytes{lacking}"


class _Patience:
    """Over when nothing has moved for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._moved = time.monotonic()
        self._mark = -1

    def saw(self, done: int, *, busy: bool) -> None:
        """Bytes that are here now; `busy` while those of an earlier process are still being hashed."""
        if busy or done != self._mark:
            self._moved, self._mark = time.monotonic(), done

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._moved > self.seconds


def _check_offered(head: Head, number: int, root: str | None) -> None:
    """Raises ShardcastError if a version will not come any more; one that is newer than all may."""
    roots = {entry.root for entry in head.packages if entry.number == number}
    if root is not None and root not in roots:
        raise ShardcastError(f"version {number} with root {root[:16]} is no longer offered; {_numbers(head)} are")
    newest = head.newest()
    if not roots and newest is not None and newest > number:
        raise ShardcastError(f"version {number} is not offered; {_numbers(head)} are")


def _numbers(head: Head | None) -> list[int]:
    return sorted({entry.number for entry in head.packages}) if head else []


def _raise_if_dead(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.error is not None:
            error, job.error = job.error, None
            raise error


def _total(jobs: Sequence[Job]) -> int | None:
    totals = [job.total for job in jobs]
    return None if None in totals else sum(total or 0 for total in totals)
