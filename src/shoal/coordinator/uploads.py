"""Content-addressed upload storage: a directory, or any object store that obstore knows by URL.

An object's name holds its step, its number and the hash of its bytes. So the same name always has the same content,
writing it again changes nothing, and a rival upload under the same lease cannot replace what is there.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store

from shoal.errors import StorageError, first_line
from shoal.files import make_directory
from shoal.object_store import open_object_store

CHUNK = 1 << 20
LISTED = 1000
INCOMING = "incoming/"
_NAME = re.compile(r"(?:incoming/)?step-(\d{6,9})/(\d{4,9})-([0-9a-f]{64})\.parquet")
# obstore writes beside the name and renames; what has such a name is listed nowhere.
TORN = "*.parquet#*"
SIGNING = (S3Store, GCSStore, AzureStore)


def incoming_name(step: int, submission: int, sha256: str) -> str:
    """Where a node itself puts a file; it is not looked at there."""
    return f"{INCOMING}{object_name(step, submission, sha256)}"


def object_name(step: int, submission: int, sha256: str) -> str:
    return f"step-{step:06d}/{submission:04d}-{sha256}.parquet"


def place_in(name: str) -> tuple[int, int, str] | None:
    """Step, number and hash of an object by its name; None for any other name."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2]), found[3]) if found else None


class Objects:
    """Files by name, each written whole or not at all."""

    def __init__(self, where: str | Path, options: Mapping[str, str] | None = None) -> None:
        """`options` are obstore's own, such as an endpoint; credentials come from the environment."""
        self._where = str(where)
        if "://" in self._where:
            self._store: ObjectStore = open_object_store("swarm.store", self._where, options or {})
        else:
            make_directory(Path(self._where))
            self._store = LocalStore(self._where)

    @property
    def is_direct(self) -> bool:
        """Whether nodes can send files to the store themselves, with URLs signed for them."""
        return isinstance(self._store, SIGNING)

    async def leave_to_put(self, name: str, seconds: float) -> str:
        """A URL to which anybody who has it can PUT one object for a while."""
        assert isinstance(self._store, SIGNING), "only asked for where is_direct"
        try:
            url: str = await obstore.sign_async(self._store, "PUT", name, timedelta(seconds=seconds))
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{name}: no permission to write it ({first_line(error)})") from error
        return url

    async def settle(self, source: str, target: str, sha256: str, size: int) -> str | None:
        """Copies an object to where nobody else can write, and removes it again if it is not the right one; why."""
        try:
            if (found := (await obstore.head_async(self._store, source))["size"]) != size:
                return f"has {found} bytes, {size} were said"
            await obstore.copy_async(self._store, source, target)
            digest = hashlib.sha256()
            async for piece in await self.get(target):
                digest.update(piece)
        except (FileNotFoundError, NotFoundError):
            return "is not there; send it to the URL first"
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{target}: cannot be written ({first_line(error)})") from error
        if digest.hexdigest() != sha256:
            await self.remove([target])
            return f"has hash {digest.hexdigest()[:12]}, {sha256[:12]} was said"
        await self.remove([source])
        return None

    async def put(self, name: str, data: bytes | IO[bytes]) -> None:
        try:
            await obstore.put_async(self._store, name, data)
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{name}: cannot be written ({first_line(error)}); try again") from error

    async def get(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of an object that is there, in pieces."""
        try:
            found = await obstore.get_async(self._store, name)
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{name}: cannot be read ({first_line(error)})") from error
        return _pieces(found)

    async def older_than(self, time: float) -> AsyncIterator[list[str]]:
        """Names of objects that were written last before a time, many at once."""
        try:
            async for chunk in obstore.list(self._store, chunk_size=LISTED):
                yield [found["path"] for found in chunk if found["last_modified"].timestamp() < time]
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}: cannot be listed ({first_line(error)})") from error

    def clear_torn(self, time: float) -> int:
        """Removes what writers who were killed left half-written in a directory before a time; how many there were."""
        if not isinstance(self._store, LocalStore):
            return 0
        torn = [path for path in Path(self._where).rglob(TORN) if path.is_file() and path.stat().st_mtime < time]
        for path in torn:
            path.unlink(missing_ok=True)
        return len(torn)

    async def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise StorageError(f"{self._where}/{name}: cannot be removed ({first_line(error)})") from error


async def _pieces(found: "obstore.GetResult") -> AsyncIterator[bytes]:
    async for piece in found.stream(min_chunk_size=CHUNK):
        yield bytes(piece)
