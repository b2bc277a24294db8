"""Directory follower: publishes versions that appear in a directory, and retracts those that were taken back.

Versions are directories or files named `v000012` or `12`, put there in one move. Their files are linked, so there is
one copy.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ShardcastError, ShoalError, StorageError
from shoal.shardcast.format.hashing import files_of, hash_pieces, known_content
from shoal.shardcast.format.manifest import Index
from shoal.shardcast.format.records import Entry, content_root
from shoal.shardcast.origin.versions import Versions

FOLLOW_S = 0.02  # between looks at the directory
RETRY_S = 5.0  # before a disk that refused is tried again
STOP_S = 5.0  # for a version that is being published when the end comes


@dataclass(slots=True)
class Follower:
    """Keeps what is offered in line with a directory."""

    directory: Path
    versions: Versions
    on_note: Callable[[str], None] = lambda _: None
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Directory entries whose content is known to be what is published, by inode and time."""
    _passed: set[tuple[int, int]] = field(default_factory=set)
    """Those that cannot be published; each is said once."""
    _retry_at: float = 0.0
    """Before this nothing is published: the disk refused a moment ago."""
    _said: str = ""

    def sync(self) -> None:
        """Takes back what is gone or was replaced, then publishes what is new, lowest number first.

        What the disk refuses now may go later: it is tried again. Only what can never be published is passed over.
        """
        if time.monotonic() < self._retry_at:
            return
        try:
            self._sync()
        except (StorageError, OSError) as error:
            if not self.directory.is_dir():
                raise StorageError(f"{self.directory}: it was removed; make it again and restart the origin") from error
            self._retry_at = time.monotonic() + RETRY_S
            if str(error) != self._said:
                self._said = str(error)
                self.on_note(f"{self.directory}: tried again every {RETRY_S:.0f} s: {error}")

    def _sync(self) -> None:
        found = self._found()
        newest = max(found, default=-1)
        lost = {e.number for e in self.versions.publisher.entries if e.number > newest or self._replaced(e, found)}
        if lost:
            self.versions.retract(lost)
            for number in lost:
                self._seen.pop(number, None)
            self.on_note(f"versions {sorted(lost)} taken back")
        offered = {entry.number for entry in self.versions.publisher.entries}
        new = [n for n in found if n not in offered and (n > max(offered, default=-1) or n == 0)]
        wanted = {*sorted({*offered, *new})[-self.versions.publisher.keep :], 0}
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
        index = Index(self.versions.publisher.store.folder(entry.name))
        with suppress(ShardcastError):
            index.refresh()
        published = {name for name, _ in index.closing.content} if index.closing else set()
        try:
            if path.is_dir() and files_of(path).keys() != published:
                return False  # it is being removed, file after file
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
            if path.is_dir():
                self.versions.publish(number, path)
            else:
                with self.versions.publisher.publish(number, size=path.stat().st_size) as package:
                    package.add(path, f"model{path.suffix}")
        except (ShoalError, OSError, ValueError) as error:
            if _state(path) != state:
                return  # it is going, or another one by now
            if isinstance(error, (StorageError, OSError)):
                raise
            self._passed.add(state)
            self.on_note(f"{path}: not published: {error}")
            return
        self._seen[number] = state
        took = time.monotonic() - began
        sizes = {e.kind: e.size or 0 for e in self.versions.publisher.entries if e.number == number}
        kinds = " and ".join(f"{kind} of {size:,} bytes" for kind, size in sizes.items())
        self.on_note(f"version {number} published in {took:.2f} s: {kinds}")


async def follow(follower: Follower, every_s: float = FOLLOW_S) -> None:
    """Follows from a thread until cancelled; whatever ends the thread is raised here, and not lost with it."""
    loop = asyncio.get_running_loop()
    stopped = threading.Event()
    ended: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        try:
            while not stopped.wait(every_s):
                follower.sync()
        except BaseException as error:
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(_fail, ended, error)

    thread = threading.Thread(target=work, name="origin-follow", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        stopped.set()
        thread.join(STOP_S)


def _fail(future: "asyncio.Future[None]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _root(path: Path, number: int, piece_size: int) -> str:
    if path.is_dir():
        return content_root(number, piece_size, known_content(path, piece_size))
    content = {f"model{path.suffix}": (path.stat().st_size, hash_pieces(path, piece_size))}
    return content_root(number, piece_size, content)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def version_number(name: str) -> int | None:
    """12 for `12`, `v000012` and `v12.safetensors`; None for any other name, such as that of a half-written one."""
    digits = name.split(".")[0].removeprefix("v")
    hidden = name.startswith(".") or name.endswith((".tmp", ".part", ".partial"))
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 and not hidden else None
