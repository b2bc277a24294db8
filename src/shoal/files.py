"""Where shoal keeps files, and how it writes them: whole or not at all."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import StorageError

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
        code = _error_number(error)
        if code in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(target)).free
            raise StorageError(
                f"{target}: the disk is full ({free:,} bytes free); nothing was lost: free some space and start again"
            ) from error
        if code in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO):
            raise StorageError(f"{target}: cannot be written ({os.strerror(code)})") from error
        raise


def _error_number(error: Exception) -> int | None:
    """The system's number of an error; safetensors and shutil.copytree only put it into their message."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    said = re.search(r"(?:os error |Errno )(\d+)", str(error))
    return int(said[1]) if said else None


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def write_whole(path: Path, data: bytes, *, once: bool = False, durable: bool = False) -> None:
    """Writes a file that readers see whole or not at all, whoever is killed meanwhile.

    With `once` an existing file is left as it is and FileExistsError raised: of several writers exactly one succeeds.
    `durable` makes it outlast a loss of power too, at the price of waiting for the disk.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=STAGING, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if once:
                os.link(name, path)
            else:
                Path(name).replace(path)
                name = ""
        finally:
            if name:
                with suppress(OSError):
                    Path(name).unlink()


@contextmanager
def whole_directory(target: Path, *, durable: bool = False) -> Iterator[Path]:
    """A staging directory that becomes `target` in one rename when the block ends well, and vanishes otherwise."""
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=target.parent))
        try:
            yield staging
            if durable:
                for path in (*staging.rglob("*"), staging):
                    _sync(path)
            staging.chmod(0o755)
            staging.rename(target)
            if durable:
                _sync(target.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def locked(path: Path, refusal: str, wait_s: float = 0.0) -> Iterator[None]:
    """Holds a lock that the system lets go when this process ends, however it ends; StorageError(refusal) if taken."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    deadline = time.monotonic() + wait_s
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StorageError(refusal) from None
                time.sleep(0.1)
        yield


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_staging(parent: Path) -> None:
    """Clears what a killed writer left half done; only for directories that have a single writer."""
    for entry in parent.glob(f"{STAGING}*"):
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
