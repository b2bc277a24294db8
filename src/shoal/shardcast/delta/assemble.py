"""Rebuilds a version from the nearest full version and the deltas after it, bit for bit, or not at all."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import DeltaError, ShardcastError
from shoal.files import STAGING, disk_errors, make_directory, whole_directory
from shoal.shardcast.format.hashing import content_of, in_parallel
from shoal.shardcast.format.manifest import FILES, Index
from shoal.shardcast.format.records import Base, Closing, Entry, Piece, content_root, digest, digest_root
from shoal.shardcast.format.store import Made, Store, is_made, made_name, read_made, write_made

DELTA = ".delta"


class DamagedError(ShardcastError):
    """A package or a version on this disk is not what it was: it has to be fetched or made again."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class UselessError(ShardcastError):
    """A delta is what the origin signed, and does not give the version that it says: there must be another way."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def assemble(store: Store, way: Sequence[Entry], files_of: Callable[[str], Path]) -> Path:
    """The folder of the version at the end of the way; `files_of` gives the files of a package or a version, checked.

    Deltas in a row are applied in one pass, file by file and several files at a time, and each byte of the result is
    hashed as it is written: it only counts if it has the root that the origin signed.
    """
    first, deltas = way[0], [entry for entry in way if entry.kind == "delta"]
    base = Base(number=first.number, root=first.root or "") if first.kind == "full" else first.base
    if base is None:
        raise ShardcastError(f"package {first.name}: a delta that names no base")
    folder = store.folder(first.name) if first.kind == "full" else find_version(store, base)
    steps = [_Step.read(store, entry, files_of) for entry in deltas]
    closing, entry = steps[-1].closing, deltas[-1]
    target = store.folder(made_name(entry.number, closing.root))
    if read_made(target):
        return target
    try:
        files = files_of(folder.name)
        with store.hold(folder.name), whole_directory(target, replace=True) as staging, disk_errors(target):
            facts = _build(files, _hashes(folder), steps, staging / FILES)
            if digest_root(entry.number, entry.piece_size, facts) != closing.root:
                raise ShardcastError(f"its files do not have the root {closing.root[:16]} that was signed")
            write_made(staging, Made(closing.root, entry.piece_size, facts))
    except (DeltaError, ShardcastError) as error:
        if isinstance(error, DamagedError):
            raise
        if _differs(folder, entry.piece_size):
            raise DamagedError(f"the base of {entry.name}: {folder.name} changed on this disk", folder.name) from error
        raise UselessError(f"{entry.name}: {error}", entry.name) from error
    return target


@dataclass(frozen=True, slots=True)
class _Step:
    """A delta package that is here: its own files with their hashes, and what it says of the version's."""

    own: Path
    closing: Closing
    facts: "Facts"

    @staticmethod
    def read(store: Store, entry: Entry, files_of: Callable[[str], Path]) -> "_Step":
        index = Index(store.folder(entry.name))
        index.refresh()
        if index.closing is None:
            raise ShardcastError(f"package {entry.name}: not whole here; fetch it again")
        return _Step(files_of(entry.name), index.closing, _hashes(index.folder))


Facts = dict[str, tuple[int, str]]  # file -> size and hash


def _build(base: Path, known: Facts, steps: Sequence[_Step], out: Path) -> Facts:
    """Makes the files of the last step's version; what no step tells of is as it was in the base."""

    def make(name: str) -> tuple[int, str]:
        source, facts = base / name, known.get(name)
        deltas: list[Path] = []
        for step in steps:
            if name in step.facts:
                source, facts, deltas = step.own / name, step.facts[name], []
            elif f"{name}{DELTA}" in step.facts:
                deltas.append(step.own / f"{name}{DELTA}")
        if facts is None:
            raise ShardcastError(f"{name} is of the version, and neither its base nor a delta has it")
        make_directory((out / name).parent)
        if deltas:
            hashes = _apply(source, deltas, out / name)
            return (out / name).stat().st_size, digest(hashes)
        link_or_copy(source, out / name)
        return facts

    names = [name for name, _ in steps[-1].closing.content]
    return dict(zip(names, in_parallel(make, names), strict=True))


def _apply(base: Path, deltas: Sequence[Path], out: Path) -> list[str]:
    from shoal.shardcast.delta.delta import ChainError, apply

    try:
        return apply(base, deltas, out, base_is_verified=True)
    except ChainError:
        between = out.with_name(f"{STAGING}{out.name}")
        _apply(base, deltas[:-1], between)
        try:
            return apply(between, deltas[-1], out, base_is_verified=True)
        finally:
            between.unlink(missing_ok=True)


def find_version(store: Store, base: Base) -> Path:
    """The folder of a version that is here whole, with this root."""
    folder = store.whole().get((base.number, base.root))
    if folder is None:
        raise ShardcastError(f"version {base.number} with root {base.root[:16]} is not here; fetch it first")
    return folder


def check_made(folder: Path) -> Path:
    """The files of a version put together here, hashed again; ShardcastError if they changed since."""
    made = read_made(folder)
    if made is None:
        raise ShardcastError(f"{folder}: its made.json is missing or invalid; fetch the version again")
    number = int(folder.name.split("-")[0])
    root = content_root(number, made.piece_size, content_of(folder / FILES, made.piece_size))
    if root != made.root:
        raise ShardcastError(f"{folder.name}: its files have root {root[:16]}, the version has {made.root[:16]}")
    return folder / FILES


def _hashes(folder: Path) -> Facts:
    """The files of a version that is here whole, as they were when they were checked."""
    if is_made(folder.name):
        made = read_made(folder)
        return dict(made.files) if made else {}
    index = Index(folder)
    index.refresh()
    pieces: dict[str, list[Piece]] = defaultdict(list)
    for piece in index.pieces.values():
        pieces[piece.file].append(piece)
    found = {}
    for name, size in index.closing.files if index.closing else ():
        ordered = sorted(pieces[name], key=lambda piece: piece.offset)
        found[name] = (size, digest(piece.hash for piece in ordered))
    return found


def _differs(folder: Path, piece_size: int) -> bool:
    """Whether the files of a version are no longer what they were when they were checked."""
    try:
        found = content_of(folder / FILES, piece_size)
    except OSError:
        return True
    return _hashes(folder) != {name: (size, digest(hashes)) for name, (size, hashes) in found.items()}


def link_or_copy(source: Path, target: Path) -> None:
    """One copy where the disk allows it; nobody writes to either."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
