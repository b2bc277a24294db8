"""Where uploads lie: a directory, or any object store that obstore knows by URL.

An object's name holds its step, its number and the hash of its bytes. So the same name always has the same content,
writing it again changes nothing, and a rival upload under the same lease cannot replace what is there.
"""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from shoal.errors import ConfigError, StorageError
from shoal.files import make_directory

CHUNK = 1 << 20


def object_name(step: int, submission: int, sha256: str) -> str:
    return f"step-{step:06d}/{submission:04d}-{sha256}.parquet"


class Objects:
    """Files by name, each written whole or not at all."""

    def __init__(self, where: str | Path) -> None:
        self._where = str(where)
        if "://" in self._where:
            try:
                self._store: ObjectStore = from_url(self._where)
            except (BaseError, ValueError) as error:
                reason = f"{_first_line(error)}; give a directory or s3://BUCKET"
                raise ConfigError(f"swarm.store {self._where}: {reason}") from error
        else:
            make_directory(Path(self._where))
            self._store = LocalStore(self._where)

    async def put(self, name: str, data: bytes | IO[bytes]) -> None:
        try:
            await obstore.put_async(self._store, name, data)
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{name}: cannot be written ({_first_line(error)}); try again") from error

    async def get(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of an object that is there, in pieces."""
        try:
            found = await obstore.get_async(self._store, name)
        except (BaseError, OSError) as error:
            raise StorageError(f"{self._where}/{name}: cannot be read ({_first_line(error)})") from error
        return _pieces(found)

    async def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise StorageError(f"{self._where}/{name}: cannot be removed ({_first_line(error)})") from error


async def _pieces(found: "obstore.GetResult") -> AsyncIterator[bytes]:
    async for piece in found.stream(min_chunk_size=CHUNK):
        yield bytes(piece)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
