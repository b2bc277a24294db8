"""Publisher: signs packages piece by piece, so that they can be fetched while they are still being written."""

import os
import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from shoal.crypto.keys import Key
from shoal.errors import ShardcastError, StorageError
from shoal.files import disk_errors, remove
from shoal.shardcast.format.hashing import Content, files_of, hash_piece, hashes_in, piece_size_for
from shoal.shardcast.format.manifest import append_line, closing_root, target_file
from shoal.shardcast.format.package_plan import retained
from shoal.shardcast.format.records import (
    MAX_RETRACTED,
    Base,
    Closing,
    Entry,
    Head,
    Kind,
    Opening,
    Piece,
    content_root,
    package_name,
    signed_head,
    signed_line,
)
from shoal.shardcast.format.store import Store, now_ms

KEEP = 5  # versions, as in INTELLECT-2


class Package:
    """A package that is being published: each piece is signed and listed as soon as its last byte is written."""

    def __init__(self, folder: Path, opening: Opening, key: Key) -> None:
        self.folder = folder
        self.opening = opening
        self.id = opening.id
        self._key = key
        self._pieces = 0
        self._files: dict[str, tuple[int, list[str]]] = {}
        self._content: Content | None = None
        self._lock = threading.Lock()
        append_line(folder, signed_line(opening, self.id, key))

    @property
    def size(self) -> int:
        return sum(size for size, _ in self._files.values())

    @property
    def content(self) -> Content:
        """The files of the version that this package gives."""
        return self._files if self._content is None else self._content

    def file(self, name: str) -> "Outgoing":
        """A file to write, from its first byte to its last; several may be open at once."""
        self._begin(name)
        return Outgoing(self, name)

    def add(self, path: Path, name: str | None = None, hashes: Sequence[str] | None = None) -> None:
        """Takes in a file that is there already, as a hard link where the disk allows it: there is one copy.

        Nobody may write to the file any more; a new one renamed over its name is fine. `hashes` are those of its
        pieces, where they are known: then it is not read at all.
        """
        name = name or path.name
        target = target_file(self.folder, name)
        with disk_errors(target):
            try:
                os.link(path, target)
            except OSError:
                with path.open("rb", buffering=0) as source, self.file(name) as out:
                    while data := source.read(self.opening.piece_size):
                        out.write(data)
                return
            self._begin(name)
            whole, size = target.stat().st_size, self.opening.piece_size
            pieces = hashes_in(target, size) if hashes is None else hashes
            for at, digest in zip(range(0, whole, size), pieces, strict=True):
                self.announce(name, digest, min(size, whole - at))

    def add_directory(self, directory: Path, content: Content | None = None) -> None:
        """Takes in all files under a directory, by their path in it; `content` are their hashes, where known."""
        for name, path in files_of(directory).items():
            self.add(path, name, content[name][1] if content else None)

    def stands_for(self, content: Content) -> None:
        """For a delta: the files of the version that it leads to."""
        self._content = content

    def announce(self, name: str, digest: str, size: int) -> None:
        """Lists the next piece of a file, whose bytes are on the disk."""
        with self._lock:
            offset, hashes = self._files[name]
            piece = Piece(index=self._pieces, file=name, offset=offset, size=size, hash=digest)
            append_line(self.folder, signed_line(piece, self.id, self._key))
            self._pieces += 1
            hashes.append(digest)
            self._files[name] = (offset + size, hashes)

    def close(self) -> str:
        """Signs the end; the version's root."""
        root = content_root(self.opening.number, self.opening.piece_size, self.content)
        closing = Closing(
            pieces=self._pieces,
            files=tuple((name, size) for name, (size, _) in sorted(self._files.items())),
            content=tuple((name, size) for name, (size, _) in sorted(self.content.items())),
            root=root,
        )
        append_line(self.folder, signed_line(closing, self.id, self._key))
        return root

    def _begin(self, name: str) -> None:
        with self._lock:
            if name in self._files:
                raise ShardcastError(f"package {self.folder.name}: {name} is already there; a file is written once")
            self._files[name] = (0, [])


class Outgoing:
    """One file on its way out."""

    def __init__(self, package: Package, name: str) -> None:
        self._package = package
        self._name = name
        self._rest = bytearray()  # less than a piece
        self._path = target_file(package.folder, name)
        with disk_errors(self._path):
            self._file = self._path.open("xb", buffering=0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        size = self._package.opening.piece_size
        if self._rest:
            room = size - len(self._rest)
            self._rest += view[:room]
            view = view[room:]
            if len(self._rest) == size:
                self._piece(self._rest)
                self._rest = bytearray()
        while len(view) >= size:  # whole pieces go out without a copy
            self._piece(view[:size])
            view = view[size:]
        self._rest += view

    def close(self) -> None:
        if self._rest:
            self._piece(self._rest)
            self._rest = bytearray()
        self._file.close()

    def __enter__(self) -> "Outgoing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _piece(self, data: bytearray | memoryview) -> None:
        with disk_errors(self._path):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) or 0 :]
            left.release()
        self._package.announce(self._name, hash_piece(data), len(data))


class Publisher:
    """Writes the packages of one run into a store, and the head that lists them. One process at a time has a store."""

    def __init__(self, store: Store, key: Key, run: str, keep: int = KEEP) -> None:
        self.store = store
        self._key = key
        self._run = run
        self.keep = keep
        self._lock = threading.RLock()
        self._open: set[str] = set()
        self._closing = ExitStack()
        self._closing.enter_context(store.writing())
        try:
            head = store.head(key.address, run)
            self._sequence = head.sequence if head else 0
            self._retracted = list(head.retracted) if head else []
            # What a killed publisher left half written will never be finished, and what is gone cannot be served.
            before = head.packages if head else ()
            self._entries = [e for e in before if e.root and e.root == closing_root(store.folder(e.name))]
            self._offer(self._entries)
        except BaseException:
            self.close()
            raise

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def publish(
        self, number: int, *, base: Base | None = None, size: int | None = None, piece_size: int | None = None
    ) -> Iterator[Package]:
        """A package to fill; it can be fetched from its first piece on, and is complete when the block ends.

        `size`, if known, lets clients show how far they are. A package of the same number and kind is replaced: the
        head lists the new one, and clients drop the old one. After an error nothing of it stays.
        """
        kind: Kind = "delta" if base else "full"
        opening = Opening(
            run=self._run,
            number=number,
            kind=kind,
            base=base,
            piece_size=piece_size or piece_size_for(size or 0),
            time_ms=now_ms(),
            nonce=secrets.token_hex(8),
        )
        name = package_name(number, kind, opening.id)
        folder = self.store.folder(name)
        entry = Entry(
            number=number, kind=kind, id=opening.id, base=base, piece_size=opening.piece_size, size=size, root=None
        )
        try:
            with self._lock:  # what is in the store and not listed is removed when a head is written
                with disk_errors(folder):
                    folder.mkdir()
                package = Package(folder, opening, self._key)
                self._open.add(opening.id)
                self._offer([*(e for e in self._entries if (e.number, e.kind) != (number, kind)), entry])
            yield package
            root = package.close()
            with self._lock:
                done = entry.model_copy(update={"size": package.size, "root": root})
                self._offer(retained([done if e.id == opening.id else e for e in self._entries], self.keep))
        except BaseException:
            remove(folder)  # first: the disk may be full of it
            self._withdraw(opening.id)
            raise
        finally:
            self._open.discard(opening.id)

    def retract(self, numbers: Collection[int]) -> None:
        """Takes versions back, and whatever stands on them; the numbers may be published again with other content."""
        with self._lock:
            gone = [e for e in self._entries if e.number in numbers and e.id not in self._open]
            roots = [e.root for e in gone if e.root]
            while resting := [e for e in self._entries if e not in gone and e.base and e.base.root in roots]:
                gone += resting
                roots += [e.root for e in resting if e.root]
            retracted = [*self._retracted, *dict.fromkeys(roots)][-MAX_RETRACTED:]
            self._offer([e for e in self._entries if e not in gone], retracted)

    def _withdraw(self, id: str) -> None:  # noqa: A002
        """Lists a package no more; where the disk does not even take that, the next head does."""
        with self._lock:
            self._entries = [e for e in self._entries if e.id != id]
            with suppress(StorageError):
                self._offer(self._entries)

    def prune(self) -> None:
        """Removes packages that the head does not list and that nobody holds."""
        listed = {entry.name for entry in self._entries}
        for name in self.store.packages():
            if name not in listed:
                self.store.remove(name)

    def _offer(self, entries: Sequence[Entry], retracted: Sequence[str] | None = None) -> None:
        """Writes a head that lists these packages; it is what counts here only once it is on the disk."""
        # Never below the clock: an origin that lost its store goes on above all that its clients have seen.
        sequence = max(self._sequence + 1, now_ms())
        head = Head(
            run=self._run,
            sequence=sequence,
            time_ms=now_ms(),
            packages=tuple(sorted(entries, key=lambda entry: (entry.number, entry.kind))),
            retracted=tuple(self._retracted if retracted is None else retracted),
        )
        self.store.write_head(signed_head(head, self._key))
        self._sequence, self._entries, self._retracted = sequence, list(entries), list(head.retracted)
        self.prune()
