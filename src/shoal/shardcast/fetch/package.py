"""State of one download: which pieces are known, which are here, and which source offers which."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

from shoal.errors import ShardcastError, StorageError
from shoal.files import disk_errors, make_directory, remove
from shoal.shardcast.format.manifest import FILES, Index, append_line, rewrite_lines, target_file, verified_lines
from shoal.shardcast.format.records import (
    MAX_LINE,
    MAX_SHORT_LINE,
    Closing,
    Entry,
    Line,
    Opening,
    Piece,
    check_line,
    check_whole,
    read_line,
)


@dataclass(slots=True)
class Offer:
    """What one source has listed of a package."""

    have: set[int] = field(default_factory=set)
    queue: list[int] = field(default_factory=list)  # a heap; pieces that are here or on their way are passed over
    ended: bool = False


class Job:
    """A package being fetched. `lock` guards everything that threads share."""

    def __init__(self, folder: Path, entry: Entry, origin: str, sources: Sequence[str]) -> None:
        self.folder = folder
        self.entry = entry
        self.lock = threading.RLock()
        self.opening: Opening | None = None
        self.pieces: dict[int, Piece] = {}
        self.done: set[int] = set()
        self.done_bytes = 0
        self.resumed = False  # what an earlier process left is known
        self.finished = False
        self.dropped = False  # the head lists it no more
        self.error: Exception | None = None
        self.offers = {source: Offer() for source in sources}
        self.asked = False  # every source is being asked for it
        self._origin = origin
        self._flying: set[int] = set()
        self._lines: dict[bytes, int] = {}  # lines whose signature was checked -> piece; -1 for the other two
        self._line_of: dict[int, bytes] = {}
        self._closing: tuple[bytes, Closing] | None = None
        self._at: dict[tuple[str, int], Piece] = {}
        self._descriptors: dict[str, int] = {}
        self._writing = 0  # threads that write to one of the descriptors
        self._closed = False

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def total(self) -> int | None:
        """Bytes of the whole package, as far as anybody says."""
        if self._closing:
            return sum(size for _, size in self._closing[1].files)
        return self.entry.size

    def lacking(self) -> list[str]:
        """The files of which somebody lists a piece that is not here."""
        with self.lock:
            return sorted({piece.file for index, piece in self.pieces.items() if index not in self.done})

    def add_source(self, url: str) -> None:
        with self.lock:
            self.offers.setdefault(url, Offer())

    def resume(self) -> None:
        """Takes up what is here. An unfinished package is hashed again: what a power loss tore is fetched again.

        That takes as long as reading it, so nobody else may be kept waiting for it.
        """
        index = Index(self.folder)
        try:
            index.refresh()
        except ShardcastError:
            index.closing = None
        whole = index.closing is not None and index.id == self.entry.id
        lines = [] if whole else verified_lines(self.folder, self._origin)
        with self.lock:
            if self._closed:
                return
            if whole:
                self.finished = True
                self.done, self.done_bytes = set(index.pieces), index.size
            elif not lines or not isinstance(lines[0][1], Opening) or lines[0][1].id != self.entry.id:
                remove(self.folder)
            else:
                rewrite_lines(self.folder, [line for line, _ in lines])
                for line, record in lines:
                    self._resume_line(line, record)
            self.resumed = True

    def _resume_line(self, line: bytes, record: Line) -> None:
        self._lines[line] = record.index if isinstance(record, Piece) else -1
        match record:
            case Opening():
                self.opening = record
            case Piece():
                self._know(record)
                self.done.add(record.index)
                self.done_bytes += record.size
            case Closing():
                self._closing = (line, record)

    def listed(self, source: str, line: bytes) -> bool:
        """Takes one manifest line of a source; True if it was something new. Raises ShardcastError for a forged one.

        A signature is checked once, however many sources send the line.
        """
        index = self._lines.get(line)
        if index is None:
            record, signature = read_line(line)
            if len(line) > (
                MAX_LINE if isinstance(record, Closing) else MAX_SHORT_LINE
            ):  # padding would fill our manifest
                raise ShardcastError(f"package {self.name}: a manifest line of {len(line):,} bytes")
            check_line(record, signature, self.entry.id, self._origin)
            with self.lock:
                index = self._take(line, record)
        offer = self.offers[source]
        with self.lock:
            if index < 0:
                offer.ended |= self._closing is not None and line == self._closing[0]
                return True
            if index in offer.have:
                return False
            offer.have.add(index)
            if index not in self.done:
                heappush(offer.queue, index)
            return True

    def _take(self, line: bytes, record: Line) -> int:
        index = -1
        match record:
            case Opening():
                if record.id != self.entry.id:
                    raise ShardcastError(f"package {self.name}: the opening of another package, {record.id[:16]}")
                if self.opening is None:
                    self._check_open()
                    make_directory(self.folder)
                    append_line(self.folder, line)
                    self.opening = record
            case Piece():
                if self.opening is None:
                    raise ShardcastError(f"package {self.name}: a piece before the opening")
                if record.offset % self.opening.piece_size or record.size > self.opening.piece_size:
                    raise ShardcastError(f"package {self.name}: piece {record.index} is not on a piece's bounds")
                index = record.index
                self._know(record)
                self._line_of.setdefault(index, line)
            case Closing():
                if self._closing is None:
                    self._closing = (line, record)
        self._lines[line] = index
        return index

    def _know(self, piece: Piece) -> None:
        known = self.pieces.setdefault(piece.index, piece)
        self._at.setdefault((known.file, known.offset), known)

    def queued(self, source: str) -> bool:
        """True if a source offers a piece that nobody is fetching."""
        offer = self.offers[source]
        with self.lock:
            while offer.queue and (offer.queue[0] in self.done or offer.queue[0] in self._flying):
                heappop(offer.queue)
            return bool(offer.queue)

    def take_run(self, source: str, max_bytes: int) -> list[Piece]:
        """The next pieces to ask a source for in one request: neighbours in one file, about `max_bytes` bytes."""
        offer = self.offers[source]
        first = self.pieces[heappop(offer.queue)]
        run, size = [first], first.size
        while size < max_bytes:
            # By place: files that are published at the same time have their pieces between each other's.
            following = self._at.get((first.file, run[-1].offset + run[-1].size))
            if (
                following is None
                or following.index not in offer.have
                or following.index in self.done
                or following.index in self._flying
            ):
                break
            run.append(following)
            size += following.size
        self._flying.update(piece.index for piece in run)
        return run

    def give_back(self, pieces: list[Piece]) -> None:
        """Pieces that did not come are offered to others again."""
        with self.lock:
            for piece in pieces:
                self._flying.discard(piece.index)
                for offer in self.offers.values():
                    if piece.index in offer.have:
                        heappush(offer.queue, piece.index)

    def store(self, piece: Piece, data: memoryview) -> None:
        """Writes a verified piece in place, then lists it."""
        with self._descriptor(piece.file) as descriptor:
            at = piece.offset
            while data:
                count = os.pwrite(descriptor, data, at)
                data, at = data[count:], at + count
        with self.lock:
            self._check_open()
            append_line(self.folder, self._line_of[piece.index])
            self._flying.discard(piece.index)
            self.done.add(piece.index)
            self.done_bytes += piece.size

    def finish(self) -> bool:
        """Ends the package if all of it is here; True the one time that it does."""
        with self.lock:
            if self.finished or self._closed or self._closing is None or self.opening is None:
                return False
            line, closing = self._closing
            if len(self.done) < closing.pieces:
                return False
            check_whole(self.opening, {index: self.pieces[index] for index in self.done}, closing)
            for name, size in closing.files:
                with self._descriptor(name) as descriptor:
                    os.ftruncate(descriptor, size)
            append_line(self.folder, line)
            self.finished = True
            self.close()
            return True

    def close(self) -> None:
        """Nothing is written any more; a write under way ends first.

        A descriptor that is closed under its writer may be another file's by then.
        """
        with self.lock:
            self._closed = True
            if not self._writing:
                for descriptor in self._descriptors.values():
                    os.close(descriptor)
                self._descriptors.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"package {self.name}: it is no longer being fetched")

    @contextmanager
    def _descriptor(self, name: str) -> Iterator[int]:
        path = self.folder / FILES / name
        with disk_errors(path):
            with self.lock:
                self._check_open()
                if name not in self._descriptors:
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                    self._descriptors[name] = os.open(target_file(self.folder, name), flags, 0o644)
                self._writing += 1
            try:
                yield self._descriptors[name]
            finally:
                with self.lock:
                    self._writing -= 1
                    if self._closed:
                        self.close()
