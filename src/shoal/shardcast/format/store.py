"""Content-addressed store: a directory of packages named by hash; what is on its disk is the only state.

```
store/
  head.json                        what the origin offers, signed
  000012-full-1f3a9c20aabbccdd/    one package: number, kind, id
    manifest.jsonl                 the opening, the pieces that are here, and the closing once all of them are
    files/model.safetensors        written in place
  000013-made-77c0e1d2a3b4c5d6/    a version put together from deltas: number, root; served to nobody
    made.json                      root, piece size and the files' hashes, written last
    files/
```

Readers hold a shared lock on a package's manifest; only what can be locked exclusively is removed.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShardcastError
from shoal.files import (
    STAGING,
    locked,
    make_directory,
    parse_json,
    read_regular,
    remove,
    remove_staging,
    write_whole,
)
from shoal.shardcast.format.manifest import MANIFEST, closing_of, closing_root
from shoal.shardcast.format.records import MAX_HEAD, PACKAGE_NAME, Head, read_head

HEAD = "head.json"
MADE = "made.json"
MAX_MADE = 1 << 22
MADE_NAME = re.compile(r"(\d{6,9})-made-([0-9a-f]{16})")


class Store:
    """A directory of packages with one writer at a time, a publisher or a puller; anybody may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_directory(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        refusal = f"store {self.path}: another process writes it; stop that one or use another directory"
        with locked(self.path / ".lock", refusal):
            remove_staging(self.path)
            yield

    def head(self, origin: str, run: str | None = None) -> Head | None:
        """The newest head that was accepted here, or None."""
        try:
            data = read_regular(self.path / HEAD, MAX_HEAD)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ShardcastError(f"store {self.path}: {HEAD} cannot be read ({error}); remove it") from error
        try:
            return read_head(data, origin, run)
        except ShardcastError as error:
            raise ShardcastError(f"store {self.path}: {error}; it belongs to another run or origin") from None

    def write_head(self, data: bytes) -> None:
        write_whole(self.path / HEAD, data)

    def folder(self, name: str) -> Path:
        return self.path / name

    def packages(self) -> list[str]:
        """Names of the packages that are here, whole or not, oldest version first."""
        found = [entry.name for entry in os.scandir(self.path) if PACKAGE_NAME.fullmatch(entry.name)]
        return sorted(found, key=lambda name: (int(name.split("-")[0]), name))

    def made(self) -> dict[int, Path]:
        """Versions put together here, number -> folder; only complete ones."""
        found = {}
        for entry in os.scandir(self.path):
            if (match := MADE_NAME.fullmatch(entry.name)) and (Path(entry.path) / MADE).is_file():
                found[int(match[1])] = Path(entry.path)
        return found

    def whole(self) -> dict[tuple[int, str], Path]:
        """Folders of the versions that are here as a whole, by number and root: full packages, and those made here.

        One number may stand for two contents: a version that was taken back stays while somebody holds it.
        """
        found = {}
        for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            folder = self.path / entry.name
            if match := PACKAGE_NAME.fullmatch(entry.name):
                root = closing_root(folder) if match[2] == "full" else None
            elif match := MADE_NAME.fullmatch(entry.name):
                made = read_made(folder)
                root = made.root if made else None
            else:
                continue
            if root is not None:
                found[int(match[1]), root] = folder
        return found

    def size(self, name: str) -> int:
        """Bytes of a version that is here as a whole."""
        folder = self.folder(name)
        if is_made(name):
            made = read_made(folder)
            return sum(size for size, _ in made.files.values()) if made else 0
        closing = closing_of(folder)
        return sum(size for _, size in closing.files) if closing else 0

    @contextmanager
    def hold(self, name: str) -> Iterator[Path]:
        """Keeps a package or a made version from being removed, by anybody, until the block or this process ends."""
        descriptor = take_hold(self.folder(name))
        if descriptor is None:
            raise ShardcastError(f"store {self.path}: {name} is no longer here; fetch it again")
        try:
            yield self.folder(name)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> bool:
        """Removes a package unless somebody holds it; True if it is gone."""
        folder = self.folder(name)
        going = self.path / f"{STAGING}{name}"
        descriptor = _open_lock(folder)
        try:
            if descriptor is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):
                folder.rename(going)  # under the lock: nobody can take hold of it meanwhile, or find it afterwards
        except BlockingIOError:
            return False
        finally:
            if descriptor is not None:
                os.close(descriptor)
        remove(going)
        return not folder.exists()


def _open_lock(folder: Path) -> int | None:
    for name in (MANIFEST, MADE):
        with suppress(OSError):
            return os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
    return None


def take_hold(folder: Path) -> int | None:
    """A descriptor that holds a package until it is closed, or None if the package is not here or going."""
    descriptor = _open_lock(folder)
    if descriptor is None:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if any(_is_file(folder / name, descriptor) for name in (MANIFEST, MADE)):  # it may have gone before the lock
            return descriptor
    os.close(descriptor)
    return None


def _is_file(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def is_made(name: str) -> bool:
    """Whether a folder's name is that of a version put together here, rather than a package's."""
    return MADE_NAME.fullmatch(name) is not None


def made_name(number: int, root: str) -> str:
    return f"{number:06d}-made-{root[:16]}"


@dataclass(frozen=True, slots=True)
class Made:
    """A version put together here: its root, its piece size, and size and hash of each of its files."""

    root: str
    piece_size: int
    files: Mapping[str, tuple[int, str]]


def write_made(folder: Path, made: Made) -> None:
    """Marks a version put together here as whole: the last file to be written."""
    (folder / MADE).write_text(json.dumps({"root": made.root, "piece_size": made.piece_size, "files": made.files}))


def read_made(folder: Path) -> Made | None:
    """What a version put together here says of itself; None if it is not whole."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        tree = parse_json(read_regular(folder / MADE, MAX_MADE))
        files = {str(name): (int(size), str(hash_)) for name, (size, hash_) in tree["files"].items()}
        return Made(str(tree["root"]), int(tree["piece_size"]), files)
    return None


def now_ms() -> int:
    return int(time.time() * 1000)
