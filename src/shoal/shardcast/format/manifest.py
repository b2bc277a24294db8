"""Manifest of a package on disk: which pieces are here, and whether their bytes are still what the origin signed.

A line is appended after its piece is written and verified, so a manifest is at once the map of what is here, the state
to resume from, and what a plain web server may hand out.
"""

import os
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.errors import ShardcastError
from shoal.files import disk_errors, make_directory, open_regular, read_regular, write_whole
from shoal.shardcast.format.hashing import hash_piece
from shoal.shardcast.format.records import (
    MAX_LINE,
    MAX_MANIFEST,
    Closing,
    Line,
    Opening,
    Piece,
    check_line,
    check_whole,
    read_line,
)

MANIFEST = "manifest.jsonl"
FILES = "files"


class Index:
    """What a package's manifest on the disk lists; `refresh` reads what was added since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = ""
        self.opening: Opening | None = None
        self.pieces: dict[int, Piece] = {}
        self.closing: Closing | None = None
        self.read_bytes = 0  # of whole lines
        self._inode = 0
        self._stretches: dict[str, list[tuple[int, int]]] = defaultdict(list)

    @property
    def size(self) -> int:
        """Bytes of pieces that are here."""
        return sum(end - start for stretches in self._stretches.values() for start, end in stretches)

    def refresh(self) -> bool:
        """Reads on; True if there was something new. A manifest that was replaced or shrank is read from its start."""
        try:
            descriptor = os.open(self.folder / MANIFEST, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            size = facts.st_size
            if size < self.read_bytes or facts.st_ino != self._inode:
                self.__init__(self.folder)  # type: ignore[misc]
                self._inode = facts.st_ino
            if not self.read_bytes < size <= MAX_MANIFEST:
                return False
            file.seek(self.read_bytes)
            data = file.read(size - self.read_bytes)
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            self._take(line)
        self.read_bytes += len(lines)
        return bool(lines)

    def _take(self, line: bytes) -> None:
        record, _ = read_line(line)
        match record:
            case Opening():
                self.opening, self.id = record, record.id
            case Piece():
                self.pieces[record.index] = record
                _join(self._stretches[record.file], record.offset, record.offset + record.size)
            case Closing():
                self.closing = record

    def covers(self, name: str, start: int, end: int) -> bool:
        """True if every byte of start..end of a file is here and verified."""
        stretches = self._stretches.get(name, [])
        at = bisect_right(stretches, (start, 1 << 62)) - 1
        return at >= 0 and stretches[at][0] <= start and end <= stretches[at][1]

    def length(self, name: str) -> int:
        """How far a file reaches by what is known of it here."""
        stretches = self._stretches.get(name)
        return stretches[-1][1] if stretches else 0


def _join(stretches: list[tuple[int, int]], start: int, end: int) -> None:
    """Adds start..end to sorted stretches that do not touch each other."""
    if stretches and stretches[-1][1] == start:  # the usual case: in order
        stretches[-1] = (stretches[-1][0], end)
        return
    insort(stretches, (start, end))
    joined: list[tuple[int, int]] = []
    for first, last in stretches:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    stretches[:] = joined


def closing_root(folder: Path) -> str | None:
    """The root of a package that is whole here."""
    closing = closing_of(folder)
    return closing.root if closing else None


def closing_of(folder: Path) -> Closing | None:
    """The end of a package that is whole here. Only its manifest's end is read: it may be megabytes long."""
    try:
        with open_regular(folder / MANIFEST) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LINE))
            record, _ = read_line(file.read(MAX_LINE).splitlines(keepends=True)[-1])
    except (OSError, IndexError, ShardcastError):
        return None
    return record if isinstance(record, Closing) else None


def target_file(folder: Path, name: str) -> Path:
    """Where a package's file is written; its directory is made."""
    path = folder / FILES / name
    make_directory(path.parent)
    return path


def append_line(folder: Path, line: bytes) -> None:
    """Adds one line in one write: a reader or a killed writer sees it whole, or without its end."""
    path = folder / MANIFEST
    with disk_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, line) != len(line):  # the disk became full in the middle
                os.ftruncate(descriptor, before)
                raise OSError(28, os.strerror(28), str(path))
        finally:
            os.close(descriptor)


def rewrite_lines(folder: Path, lines: Sequence[bytes]) -> None:
    """Makes these lines the manifest, if it is not that already: who holds it holds the file, not its name."""
    path, data = folder / MANIFEST, b"".join(lines)
    if path.stat().st_size != len(data):
        write_whole(path, data)


def verified_lines(folder: Path, origin: str, threads: int = 2) -> list[tuple[bytes, Line]]:
    """The lines of a manifest on this disk that the origin signed and whose bytes are here, hashed again now.

    What a loss of power tore, and what somebody changed, is left out. Empty if the opening itself is not right.
    """
    try:
        data = read_regular(folder / MANIFEST, MAX_MANIFEST)
    except OSError:
        return []
    taken: list[tuple[bytes, Line]] = []
    id_ = ""
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            record, signature = read_line(line)
            if not id_:
                if not isinstance(record, Opening):
                    return []
                id_ = record.id
            check_line(record, signature, id_, origin)
        except ShardcastError:
            if not taken:
                return []
            continue
        taken.append((line, record))
    pieces = [record for _, record in taken if isinstance(record, Piece)]
    with ThreadPoolExecutor(threads) as pool:
        right = pool.map(lambda piece: _is_right(folder, piece), pieces)
        good = {piece.index for piece, ok in zip(pieces, right, strict=True) if ok}
    kept = [(line, record) for line, record in taken if not isinstance(record, Piece) or record.index in good]
    if len(good) < len(pieces):
        kept = [(line, record) for line, record in kept if not isinstance(record, Closing)]
    return kept


def check_package(folder: Path, origin: str) -> Closing:
    """Hashes a whole package again; ShardcastError unless it is, byte for byte, what the origin signed."""
    lines = verified_lines(folder, origin)
    opening = next((record for _, record in lines if isinstance(record, Opening)), None)
    closing = next((record for _, record in lines if isinstance(record, Closing)), None)
    if opening is None or closing is None:
        raise ShardcastError(f"package {folder.name}: not whole on this disk, or damaged; fetch it again")
    check_whole(opening, {r.index: r for _, r in lines if isinstance(r, Piece)}, closing)
    for name, size in closing.files:
        if (folder / FILES / name).stat().st_size != size:
            raise ShardcastError(f"package {folder.name}: {name} is longer than what was signed; fetch it again")
    return closing


def _is_right(folder: Path, piece: Piece) -> bool:
    try:
        descriptor = os.open(folder / FILES / piece.file, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            data = os.pread(descriptor, piece.size, piece.offset)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return hash_piece(data) == piece.hash
