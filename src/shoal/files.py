"""Atomic file writes (write to a staging name, then rename), locks, and bounded reads."""

import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from shoal.errors import LockedError, StorageError
from shoal.wait import wait_until

STAGING = ".staging-"


def cache_dir() -> Path:
    """The directory for what can be made again: `SHOAL_CACHE`, else `shoal` under the user's cache directory."""
    if own := os.environ.get("SHOAL_CACHE"):
        return Path(own)
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "shoal"


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turns what the disk says into a StorageError that names the file and the fix."""
    try:
        yield
    except Exception as error:
        code = error_number(error)
        if code in (errno.ENOSPC, errno.EDQUOT):
            free = free_bytes(target)
            raise StorageError(
                f"{target}: the disk is full ({free:,} bytes free); nothing was lost: free some space and start again"
            ) from error
        if code in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO):
            raise StorageError(f"{target}: cannot be written ({os.strerror(code)})") from error
        if code == errno.ENAMETOOLONG:
            raise StorageError(f"{str(target)[:80]}...: {os.strerror(code)}; give a shorter one") from error
        raise


def make_directory(path: Path) -> None:
    """Makes a directory with its parents, or says which file is in the way."""
    with disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            way = next((p for p in (path, *path.parents) if os.path.lexists(p) and not p.is_dir()), path)
            raise StorageError(
                f"{path}: cannot be created because {way} is not a directory; remove it or give another place"
            ) from error


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """A regular file for reading; OSError for anything else, such as a pipe that would block its reader for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):  # asked before fdopen, which names a directory by its descriptor and leaves it open
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_regular(path: Path, max_bytes: int = 1 << 24) -> bytes:
    """The bytes of a regular file that has at most so many; OSError otherwise."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` gives, for what others wrote; ValueError for anything else.

    Nesting has a bound of its own here. json.loads goes as deep as the recursion limit allows, which a library may have
    raised, and then takes the process down with it.
    """
    from pydantic_core import from_json

    return from_json(text)


def error_number(error: Exception) -> int | None:
    """The system's number of an error; safetensors and shutil.copytree only put it into their message."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    said = re.search(r"(?:os error |Errno )(\d+)", str(error))
    return int(said[1]) if said else None


def free_bytes(path: Path) -> int:
    """Room on the disk where a file or directory is, or would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def tree_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; what vanishes meanwhile is not counted."""
    total = 0
    with suppress(OSError):
        if not path.is_dir():
            return path.stat().st_size
        for entry in os.scandir(path):
            with suppress(OSError):
                is_folder = entry.is_dir(follow_symlinks=False)
                total += tree_bytes(Path(entry.path)) if is_folder else entry.stat(follow_symlinks=False).st_size
    return total


def write_whole(path: Path, data: bytes, *, once: bool = False, durable: bool = False, private: bool = False) -> None:
    """Writes a file that readers see whole or not at all, whichever process is killed meanwhile.

    With `once` an existing file is left as it is and FileExistsError raised: of several writers exactly one succeeds.
    `durable` makes it outlast a loss of power too, at the price of waiting for the disk. A `private` one is for its
    owner alone, from its first byte on.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600 if private else 0o666)

    with whole_file(path, once=once) as staging, open(staging, "xb", opener=opener) as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def check_writable(path: Path) -> None:
    """Raises what `write_whole` would raise, and leaves a file that is there as it is: for before hours of work."""
    make_directory(path.parent)
    with disk_errors(path):
        if path.is_dir():
            raise StorageError(f"{path}: cannot be written because it is a directory; give the name of a file")
        staging = _staging(path.parent)
        staging.touch(exist_ok=False)
        staging.unlink()


@contextmanager
def whole_file(path: Path, *, once: bool = False) -> Iterator[Path]:
    """A place for a file that becomes `path` in one rename when the block ends well, and vanishes otherwise."""
    make_directory(path.parent)
    with disk_errors(path):
        staging = _staging(path.parent)
        try:
            yield staging
            if once:
                os.link(staging, path)
            else:
                staging.replace(path)
        finally:
            with suppress(OSError):
                staging.unlink()


@contextmanager
def whole_directory(target: Path, *, durable: bool = False, replace: bool = False) -> Iterator[Path]:
    """A staging directory that becomes `target` in one rename when the block ends well, and vanishes otherwise.

    With `replace`, whatever stands at `target` stays until the new one is complete. Files get the modes that the user's
    umask gives, whatever process wrote them.
    """
    make_directory(target.parent)
    with disk_errors(target):
        staging = _staging(target.parent, f"{target.name}-")
        staging.mkdir()
        old = staging.with_name(f"{staging.name}-old")
        mode = staging.stat().st_mode
        try:
            yield staging
            for path in staging.rglob("*"):
                path.chmod(mode if path.is_dir() else mode & 0o666)
            if durable:
                for path in (*staging.rglob("*"), staging):
                    _sync(path)
            if replace and os.path.lexists(target):
                target.rename(old)
            staging.rename(target)
            if durable:
                _sync(target.parent)
        finally:
            if old.exists() and not target.exists():
                old.rename(target)
            remove(staging)
            remove(old)


def _staging(parent: Path, label: str = "") -> Path:
    return parent / f"{STAGING}{label}{secrets.token_hex(8)}"


@contextmanager
def locked(path: Path, refusal: str, wait_s: float = 0.0) -> Iterator[None]:
    """Holds a lock that the system lets go when this process ends, however it ends; LockedError(refusal) if taken."""
    make_directory(path.parent)
    with disk_errors(path):
        file = path.open("w")
    with file:
        wait_until(lambda: _took(file), wait_s, refusal, error=LockedError)
        yield


def _took(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def numbered(name: str, prefix: str) -> int | None:
    """The number in a name such as `step-000012`; None for any other, so that nothing counts under two names."""
    digits = name.removeprefix(prefix)
    plain = name.startswith(prefix) and digits.isascii() and digits.isdecimal() and len(digits) <= 9
    return int(digits) if plain and name == f"{prefix}{int(digits):06d}" else None


def remove_staging(parent: Path, label: str = "") -> None:
    """Clears what a killed writer left half done; only for directories, or labels, that have a single writer."""
    for entry in parent.glob(f"{STAGING}{label}*"):
        remove(entry)


def remove(path: Path) -> None:
    """Removes a file or a directory, if it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
