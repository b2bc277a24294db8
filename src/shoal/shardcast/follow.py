"""Publishes what a directory holds: versions that appear there are offered, those that were taken back are no more.

Versions are directories or files named `v000012` or `12`, put there in one move. Their files are linked, so there is
one copy. Where a version holds bf16 weights and the one before it is here, a delta goes out instead of the whole, but
for every so many versions.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import DeltaError, ShoalError
from shoal.files import STAGING
from shoal.shardcast.assemble import DELTA
from shoal.shardcast.publish import Content, Publisher, piece_size_for
from shoal.shardcast.records import Base, Entry, content_root
from shoal.shardcast.store import directory_root, files_of, hash_pieces

FULL_EVERY = 8  # versions; a newcomer fetches a full one and at most so many deltas
WEIGHTS = ".safetensors"


@dataclass(slots=True)
class Follower:
    """Keeps a publisher in line with a directory."""

    directory: Path
    publisher: Publisher
    full_every: int = FULL_EVERY
    on_note: Callable[[str], None] = lambda _: None
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Directory entries whose content is known to be what is published, by inode and time."""
    _passed: set[tuple[int, int]] = field(default_factory=set)
    """Those that cannot be published; each is said once."""

    def sync(self) -> None:
        """Takes back what is gone or was replaced, then publishes what is new, lowest number first."""
        found = self._found()
        newest = max(found, default=-1)
        lost = {e.number for e in self.publisher.entries if e.number > newest or self._replaced(e, found)}
        if lost:
            self.publisher.retract(lost)
            for number in lost:
                self._seen.pop(number, None)
            self.on_note(f"versions {sorted(lost)} taken back")
        offered = {entry.number for entry in self.publisher.entries}
        new = [n for n in found if n not in offered and (n > max(offered, default=-1) or n == 0)]
        wanted = {*sorted({*offered, *new})[-self.publisher.keep :], 0}
        for number in sorted(n for n in new if n in wanted):
            self._publish(number, found)

    def _found(self) -> dict[int, Path]:
        found = {}
        for path in self.directory.iterdir():
            number = version_number(path.name)
            if number is not None and (state := _state(path)) and state not in self._passed:
                found[number] = path
        return found

    def _replaced(self, entry: Entry, found: dict[int, Path]) -> bool:
        path = found.get(entry.number)
        if path is None or self._seen.get(entry.number) == (state := _state(path)):
            return False
        try:
            same = _root(path, entry.number, entry.piece_size) == entry.root
        except OSError:  # it is going this moment
            return False
        if same and state:
            self._seen[entry.number] = state
        return not same

    def _publish(self, number: int, found: dict[int, Path]) -> None:
        path = found[number]
        state, began = _state(path), time.monotonic()
        if state is None:
            return
        try:
            if not self._publish_delta(number, found):
                self._publish_full(number, path)
        except (ShoalError, OSError, ValueError) as error:
            if _state(path) == state:
                self._passed.add(state)
                self.on_note(f"{path}: not published: {error}")
            return
        self._seen[number] = state
        done = next(e for e in self.publisher.entries if e.number == number)
        took = time.monotonic() - began
        self.on_note(
            f"version {number} published in {took:.2f} s: {done.kind}, {done.size or 0:,} bytes, root {done.root}"
        )

    def _publish_full(self, number: int, path: Path) -> None:
        if path.is_dir():
            self.publisher.publish_directory(number, path)
            return
        with self.publisher.publish(number, size=path.stat().st_size) as package:
            package.add(path, f"model{path.suffix}")

    def _publish_delta(self, number: int, found: dict[int, Path]) -> bool:
        """Publishes a version as what it changes in the one before it, if that pays."""
        base = next((e for e in self.publisher.entries if e.number == number - 1 and e.root), None)
        new, old = found[number], found.get(number - 1)
        full = [e.number for e in self.publisher.entries if e.kind == "full"]
        if base is None or base.root is None or old is None or number - max(full, default=-1) >= self.full_every:
            return False
        if not (new.is_dir() and old.is_dir()):
            return False
        files, before = files_of(new), files_of(old)
        size = sum(path.stat().st_size for path in files.values())
        piece = piece_size_for(size)
        if not any(_holds_bf16(path) for path in files.values()):
            return False
        if piece != base.piece_size or directory_root(old, base.number, piece) != base.root:
            return False
        with tempfile.TemporaryDirectory(prefix=STAGING, dir=self.publisher.store.path) as scratch:
            parts = _parts(files, before, Path(scratch))
            sent = sum(path.stat().st_size for path in parts.values())
            if 2 * sent > size:
                return False
            content: Content = {name: (p.stat().st_size, hash_pieces(p, piece)) for name, p in files.items()}
            of = Base(number=base.number, root=base.root)
            with self.publisher.publish(number, base=of, size=sent, piece_size=piece) as package:
                for name, path in parts.items():
                    package.add(path, name)
                package.stands_for(content)
        return True


def _parts(files: dict[str, Path], before: dict[str, Path], scratch: Path) -> dict[str, Path]:
    """What a delta package holds: nothing of files that did not change, deltas of weights, and the others whole."""
    from shoal.shardcast.delta import encode

    parts = {}
    for index, (name, path) in enumerate(files.items()):
        old = before.get(name)
        if old is not None and name.endswith(WEIGHTS):
            try:
                encode(old, path, scratch / str(index))
                parts[f"{name}{DELTA}"] = scratch / str(index)
                continue
            except DeltaError:  # no safetensors file, whatever its name
                pass
        if old is None or old.stat().st_size != path.stat().st_size or old.read_bytes() != path.read_bytes():
            parts[name] = path
    return parts


def _holds_bf16(path: Path) -> bool:
    if not path.name.endswith(WEIGHTS):
        return False
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return b'"BF16"' in file.read(min(length, 1 << 24))


def _root(path: Path, number: int, piece_size: int) -> str:
    if path.is_dir():
        return directory_root(path, number, piece_size)
    content = {f"model{path.suffix}": (path.stat().st_size, hash_pieces(path, piece_size))}
    return content_root(number, piece_size, content)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def version_number(name: str) -> int | None:
    """12 for `12`, `v000012` and `v12.safetensors`; None for whatever is no version, half-written ones among them."""
    digits = name.split(".")[0].removeprefix("v")
    hidden = name.startswith(".") or name.endswith((".tmp", ".part", ".partial"))
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 and not hidden else None
