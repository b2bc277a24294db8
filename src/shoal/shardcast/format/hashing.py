"""Hashes of files by pieces: each byte is hashed once, where it is written, and several files at a time.

A file's hash is BLAKE3 over the hashes of its pieces, so pieces can be hashed in any order and by any process. What
was hashed while it was written is kept beside the file, in a hidden one, and believed while size and time of the file
are the same: it spares our own disk a second pass. What came from others is never believed that way.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from shoal.files import open_regular, parse_json, read_regular
from shoal.shardcast.format.records import LARGEST_PIECE, MIB

THREADS = max(2, min(8, os.cpu_count() or 2))  # that hash, encode or apply at once: none of it holds Python's lock
CHUNK = 1 << 19  # bytes that stay in a core's cache between their reading and their hash
MAX_NOTE = 1 << 26
Content = Mapping[str, tuple[int, Sequence[str]]]  # file -> its size and the hashes of its pieces

Item = TypeVar("Item")
Result = TypeVar("Result")


def piece_size_for(size: int) -> int:
    """Small pieces pass through a tree sooner; large ones keep the lists of large versions short."""
    return MIB if size < 64 * MIB else 2 * MIB if size < 256 * MIB else LARGEST_PIECE


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What the work gives for each item, in their order; the first error, once nothing is under way any more."""
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def hash_piece(data: bytes | bytearray | memoryview) -> str:
    """The hash of one piece."""
    return blake3(data).hexdigest()


class PieceHasher:
    """Hashes of a file's pieces, from its bytes in order, however they are cut."""

    def __init__(self, piece_size: int) -> None:
        self._piece_size = piece_size
        self._hashes: list[str] = []
        self._hasher, self._room = blake3(), piece_size

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view) >= self._room:
            self._hasher.update(view[: self._room])
            view = view[self._room :]
            self._end()
        self._hasher.update(view)
        self._room -= len(view)

    def finish(self) -> list[str]:
        """The hashes of all pieces, the last of which may be short."""
        if self._room < self._piece_size:
            self._end()
        return self._hashes

    def _end(self) -> None:
        self._hashes.append(self._hasher.hexdigest())
        self._hasher, self._room = blake3(), self._piece_size


def hashes_in(path: Path, piece_size: int) -> Iterator[str]:
    """Hashes of a file's pieces, in order, each when it is asked for."""
    buffer = memoryview(bytearray(CHUNK))
    hasher, room = blake3(), piece_size
    with open_regular(path) as file:
        while count := file.readinto(buffer[:room]):
            hasher.update(buffer[:count])
            room -= count
            if not room:
                yield hasher.hexdigest()
                hasher, room = blake3(), piece_size
    if room < piece_size:
        yield hasher.hexdigest()


def hash_pieces(path: Path, piece_size: int) -> list[str]:
    """Hashes of a file's pieces, in order."""
    return list(hashes_in(path, piece_size))


def files_of(directory: Path) -> dict[str, Path]:
    """The files of a version by their name in it: all that are not hidden."""
    found = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not any(part.startswith(".") for part in name.split("/"))}


def content_of(directory: Path, piece_size: int) -> Content:
    """The files of a version: their sizes and the hashes of their pieces, hashed now."""
    return _content(directory, lambda path: hash_pieces(path, piece_size))


def known_content(directory: Path, piece_size: int) -> Content:
    """The same for a directory of our own: files that were hashed when they were written are not hashed again."""
    return _content(directory, lambda path: _noted(path, piece_size) or hash_pieces(path, piece_size))


def _content(directory: Path, hashes: Callable[[Path], Sequence[str]]) -> Content:
    files = files_of(directory)
    found = in_parallel(hashes, files.values())
    return {name: (path.stat().st_size, h) for (name, path), h in zip(files.items(), found, strict=True)}


def note_hashes(path: Path, piece_size: int, hashes: Sequence[str]) -> None:
    """Keeps the hashes of a file that nobody will write to any more; for a small one it is not worth a file."""
    facts = path.stat()
    if facts.st_size >= MIB:
        note = {"piece_size": piece_size, "size": facts.st_size, "time_ns": facts.st_mtime_ns, "pieces": list(hashes)}
        _note(path).write_text(json.dumps(note))


def _noted(path: Path, piece_size: int) -> list[str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        note, facts = parse_json(read_regular(_note(path), MAX_NOTE)), path.stat()
        if (note["piece_size"], note["size"], note["time_ns"]) == (piece_size, facts.st_size, facts.st_mtime_ns):
            return list(map(str, note["pieces"]))
    return None


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.pieces")
