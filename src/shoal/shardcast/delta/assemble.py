"""Rebuilds a version from the nearest full version and the deltas after it, bit for bit, or not at all."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.errors import DeltaError, ShardcastError
from shoal.files import disk_errors, make_directory, whole_directory
from shoal.shardcast.format.manifest import FILES, Index
from shoal.shardcast.format.records import Base, Closing, Entry
from shoal.shardcast.format.store import Store, directory_root, is_made, made_name, read_made, write_made

DELTA = ".delta"
# Two threads of a process may want the same version.
_ONE_AT_A_TIME = threading.Lock()


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


def assemble(store: Store, way: Sequence[Entry], files_of: Callable[[str], Path], keep: int) -> Path:
    """The folder of the version at the end of the way; `files_of` gives a package's files, checked.

    Each delta is applied only to the version that it names, and its result only counts if it has the root that the
    origin signed. Of the versions put together here `keep` stay: the newest ones and this one.
    """
    with _ONE_AT_A_TIME:
        return _assemble(store, way, files_of, keep)


def _assemble(store: Store, way: Sequence[Entry], files_of: Callable[[str], Path], keep: int) -> Path:
    here: Path | None = None
    for entry in way:
        if entry.kind == "full":
            here = files_of(entry.name)
            continue
        if entry.base is None:
            raise ShardcastError(f"package {entry.name}: a delta that names no base")
        base = here or find_version(store, entry.base, files_of)
        here = _step(store, entry, base, files_of(entry.name)) / FILES
    assert here is not None
    others = [folder for _, folder in sorted(store.made().items()) if folder != here.parent]
    for folder in others[: max(0, len(others) + 1 - keep)]:
        store.remove(folder.name)
    return here.parent


def find_version(store: Store, base: Base, files_of: Callable[[str], Path]) -> Path:
    """The files of a version that is here whole, with this root."""
    folder = store.whole().get((base.number, base.root))
    if folder is None:
        raise ShardcastError(f"version {base.number} with root {base.root[:16]} is not here; fetch it first")
    return folder / FILES if is_made(folder.name) else files_of(folder.name)


def check_made(folder: Path) -> Path:
    """The files of a version put together here, hashed again; ShardcastError if they changed since."""
    made = read_made(folder)
    if made is None:
        raise ShardcastError(f"{folder}: its made.json is missing or invalid; fetch the version again")
    root, piece_size = made
    number = int(folder.name.split("-")[0])
    _check_root(folder / FILES, Base(number=number, root=root), piece_size, folder.name)
    return folder / FILES


def _step(store: Store, entry: Entry, base: Path, own: Path) -> Path:
    index = Index(store.folder(entry.name))
    index.refresh()
    closing = index.closing
    if closing is None or entry.base is None:
        raise ShardcastError(f"package {entry.name}: not whole here; fetch it again")
    target = store.folder(made_name(entry.number, closing.root))
    if read_made(target):
        return target
    try:
        _check_root(base, entry.base, entry.piece_size, f"the base of {entry.name}")
    except ShardcastError as error:
        raise DamagedError(str(error), base.parent.name) from None
    with whole_directory(target, replace=True) as staging, disk_errors(target):
        try:
            for name, _ in closing.content:
                out = staging / FILES / name
                make_directory(out.parent)
                _make(base / name, own, name, out, closing)
            _check_root(staging / FILES, Base(number=entry.number, root=closing.root), entry.piece_size, entry.name)
        except (DeltaError, ShardcastError) as error:
            raise UselessError(f"{entry.name}: {error}", entry.name) from error
        write_made(staging, closing.root, entry.piece_size)
    return target


def _make(base: Path, own: Path, name: str, out: Path, closing: Closing) -> None:
    mine = {file for file, _ in closing.files}
    if f"{name}{DELTA}" in mine:
        from shoal.shardcast.delta.delta import apply

        apply(base, own / f"{name}{DELTA}", out, base_is_verified=True)
    elif name in mine:
        link_or_copy(own / name, out)
    else:
        link_or_copy(base, out)


def link_or_copy(source: Path, target: Path) -> None:
    """One copy where the disk allows it; nobody writes to either."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _check_root(files: Path, wanted: Base, piece_size: int, what: str) -> None:
    root = directory_root(files, wanted.number, piece_size)
    if root != wanted.root:
        raise ShardcastError(f"{what}: its files have root {root[:16]}, version {wanted.number} has {wanted.root[:16]}")
