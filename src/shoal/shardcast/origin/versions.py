"""Full versions and deltas: publishes a delta for followers, and every few versions a full one for newcomers.

Each version's files stay linked in the store as the base of the next delta: one copy, whatever becomes of the
trainer's own directory. After a restart the first version is a full one.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from shoal.errors import DeltaError, ShardcastError
from shoal.files import whole_directory
from shoal.shardcast.delta.assemble import DELTA, link_or_copy
from shoal.shardcast.format.hashing import Content, files_of, in_parallel, known_content, piece_size_for
from shoal.shardcast.format.manifest import FILES
from shoal.shardcast.format.records import Base, content_root, digest
from shoal.shardcast.format.store import Made, made_name, write_made
from shoal.shardcast.origin.publish import Outgoing, Package, Publisher

FULL_EVERY = 8
PAYS = 0.5  # of the full size: a larger delta is not worth its chain
WEIGHTS = ".safetensors"


def delta_room(size: int) -> int:
    """Most bytes of a delta that is published for a version of this size."""
    return int(PAYS * size)


def full_is_due(has_delta: bool, since_full: int, full_every: int = FULL_EVERY) -> bool:
    """Whether a version goes out whole: one without a delta, and the last of `full_every` versions for newcomers.
    `since_full` counts the versions since the last that did, this one included."""
    return not has_delta or since_full >= full_every


@dataclass(frozen=True, slots=True)
class _Last:
    number: int
    root: str
    piece_size: int
    files: Path
    content: Content

    def is_base_of(self, number: int, piece_size: int, files: Collection[str]) -> bool:
        """Whether a delta can say what became of its weights; other files may come and go."""
        weights = {name for name in files if name.endswith(WEIGHTS)}
        same = weights == {name for name in self.content if name.endswith(WEIGHTS)}
        return number > self.number and piece_size == self.piece_size and same


class Versions:
    """Publishes directories as versions, as deltas where they pay."""

    def __init__(self, publisher: Publisher, full_every: int = FULL_EVERY, *, deltas: bool = True) -> None:
        self.publisher = publisher
        self._full_every = full_every
        self._deltas = deltas
        self._last: _Last | None = None
        self._since_full = 0
        for folder in publisher.store.made().values():
            publisher.store.remove(folder.name)

    def publish(self, number: int, directory: Path) -> str:
        """Publishes all files under a directory, which nobody may change any more; the version's root."""
        files = files_of(directory)
        size = sum(path.stat().st_size for path in files.values())
        piece_size = piece_size_for(size)
        deltas = self._deltas and any(_holds_bf16(path) for path in files.values())
        last = self._last if deltas else None
        content = known_content(directory, piece_size)
        sent = False
        if last is not None and last.is_base_of(number, piece_size, files.keys()):
            sent = self._publish_delta(number, directory, content, last, size)
        self._since_full += 1
        if full_is_due(sent, self._since_full, self._full_every):
            with self.publisher.publish(number, size=size) as package:
                package.add_directory(directory, content)
            self._since_full = 0
        root = content_root(number, piece_size, content)
        if deltas:
            self._keep(_Last(number, root, piece_size, directory, content))
        return root

    def retract(self, numbers: Collection[int]) -> None:
        """Takes versions back; the next one published is a full one."""
        self._last = None
        self.publisher.retract(numbers)

    def _publish_delta(self, number: int, directory: Path, content: Content, last: _Last, size: int) -> bool:
        """Publishes what changed since the last version while it is being encoded; False if it does not pay."""
        base = Base(number=last.number, root=last.root)
        changed = [name for name in sorted(content) if content[name] != last.content.get(name)]
        room = _Room(delta_room(size))
        try:
            with self.publisher.publish(number, base=base, piece_size=last.piece_size) as package:
                package.stands_for(content)
                in_parallel(lambda name: _send(package, name, directory, content, last, room), changed)
        except (_DoesNotPay, DeltaError):  # what no delta can be made of goes out whole
            return False
        return True

    def _keep(self, version: _Last) -> None:
        store = self.publisher.store
        target = store.folder(made_name(version.number, version.root))
        if not target.exists():
            with whole_directory(target) as staging:
                for name in version.content:
                    out = staging / FILES / name
                    out.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(version.files / name, out)
                files = {name: (size, digest(hashes)) for name, (size, hashes) in version.content.items()}
                write_made(staging, Made(version.root, version.piece_size, files))
        self._last = replace(version, files=target / FILES)
        for folder in store.made().values():
            if folder != target:
                store.remove(folder.name)


def _holds_bf16(path: Path) -> bool:
    """Deltas are for bf16 weights: others change in most of their bits at every step."""
    if not path.name.endswith(WEIGHTS):
        return False
    with path.open("rb") as file:
        return b'"BF16"' in file.read(min(int.from_bytes(file.read(8), "little"), 1 << 24))


def _send(package: Package, name: str, directory: Path, content: Content, last: _Last, room: "_Room") -> None:
    """One file of a delta: what changed in weights, and any other file as it is."""
    from shoal.shardcast.delta.delta import encode

    if not name.endswith(WEIGHTS):
        package.add(directory / name, name, content[name][1])
        return
    before, after = (bytes.fromhex(digest(version[name][1])) for version in (last.content, content))
    with package.file(f"{name}{DELTA}") as out:
        encode(
            last.files / name,
            directory / name,
            cast("BinaryIO", _Bounded(out, room)),
            base_hash=before,
            new_hash=after,
            piece_size=last.piece_size,
        )


class _DoesNotPay(ShardcastError):
    pass


class _Room:
    """Bytes that a whole delta may take; threads share it."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise _DoesNotPay("the delta is larger than it is worth")


class _Bounded:
    """A file of a delta that refuses to become larger than the delta is worth."""

    def __init__(self, out: Outgoing, room: _Room) -> None:
        self._out = out
        self._room = room

    def write(self, data: bytes) -> int:
        self._room.take(len(data))
        self._out.write(data)
        return len(data)
