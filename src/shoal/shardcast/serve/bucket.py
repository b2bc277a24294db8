"""A relay in an object store: mirrors a store's finished packages to S3, R2 or whatever else obstore knows.

Readers fetch from it with plain GETs, through any web server or CDN in front of it. The order of writing keeps them
safe without transactions: a package's files, then its manifest, then a head all of whose finished packages are there.
An object is never changed under its name, except the head. Nothing in the bucket is trusted: readers check signatures.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import obstore
from obstore.exceptions import BaseError

from shoal.errors import ConfigError, ShardcastError, ShoalError, StorageError, first_line
from shoal.files import open_regular, read_regular
from shoal.object_store import open_object_store
from shoal.shardcast.format.manifest import FILES, MANIFEST, check_package, closing_root
from shoal.shardcast.format.records import MAX_HEAD, MAX_MANIFEST, PACKAGE_NAME, Head, read_head
from shoal.shardcast.format.store import HEAD, Store

# A CDN may keep a package for as long as it likes, and must ask for the head each time.
LASTING = {"Cache-Control": "public, max-age=31536000, immutable"}
FRESH = {"Cache-Control": "no-cache", "Content-Type": "application/json"}
LOOK_S = 0.5  # between looks at the store
MAX_PAUSE_S = 60.0  # between tries at a bucket that refuses
MAX_HEADS = 64  # that wait for their packages


class Bucket:
    """Packages and a head under one prefix of an object store."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self._store = open_object_store("--to", self.url, options)

    async def packages(self) -> dict[str, bool]:
        """Packages of which anything is there; True for those with a manifest, which is written last."""
        found: dict[str, bool] = {}
        try:
            async for chunk in obstore.list(self._store):
                for entry in chunk:
                    name, _, rest = entry["path"].partition("/")
                    if PACKAGE_NAME.fullmatch(name):
                        found[name] = found.get(name, False) or rest == MANIFEST
        except (BaseError, OSError) as error:
            raise StorageError(f"{self.url}: cannot be listed ({first_line(error)})") from error
        return found

    async def head(self) -> bytes | None:
        """The head that is there, or None; empty for one that is larger than a head can be."""
        try:
            found = await obstore.get_async(self._store, HEAD)
            return bytes(await found.bytes_async()) if found.meta["size"] <= MAX_HEAD else b""
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise StorageError(f"{self.url}/{HEAD}: cannot be read ({first_line(error)})") from error

    async def put_head(self, data: bytes) -> None:
        await self._put(HEAD, data, FRESH)

    async def put_package(self, store: Store, name: str, origin: str) -> int:
        """Writes a package that is whole in the store, manifest last; how many bytes its files have.

        It is hashed before: what a disk has torn must not stay in a bucket under a name that is never written again.
        """
        with store.hold(name) as folder:
            closing = await asyncio.to_thread(check_package, folder, origin)
            for file, _ in closing.files:
                await self._put(f"{name}/{FILES}/{file}", folder / FILES / file, LASTING)
            await self._put(f"{name}/{MANIFEST}", read_regular(folder / MANIFEST, MAX_MANIFEST), LASTING)
        return sum(size for _, size in closing.files)

    async def remove_package(self, name: str) -> None:
        """Removes a package, its manifest first: what is half gone is not whole."""
        try:
            await obstore.delete_async(self._store, [f"{name}/{MANIFEST}"])
            async for chunk in obstore.list(self._store, f"{name}/"):
                await obstore.delete_async(self._store, [entry["path"] for entry in chunk])
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise StorageError(f"{self.url}/{name}: cannot be removed ({first_line(error)})") from error

    async def _put(self, path: str, content: bytes | Path, attributes: Mapping[str, str]) -> None:
        try:
            if isinstance(content, bytes):
                await obstore.put_async(self._store, path, content, attributes=dict(attributes))
            else:
                with open_regular(content) as file:
                    await obstore.put_async(self._store, path, file, attributes=dict(attributes))
        except (BaseError, OSError) as error:
            raise StorageError(f"{self.url}/{path}: cannot be written ({first_line(error)})") from error


class Mirror:
    """Keeps a bucket in line with a store that a puller fills.

    A head may list a finished package that is not in the bucket yet, while newer heads come all the time. So heads wait
    until their packages are there, and the newest that is complete is written: a slow link delays versions, and keeps
    away only those that the origin drops before they are out.
    """

    def __init__(self, store: Store, bucket: Bucket, origin: str, run: str | None) -> None:
        self._store = store
        self._bucket = bucket
        self._origin = origin
        self._run = run
        self._there: dict[str, bool] | None = None
        self._sequence = -1  # of the head in the bucket
        self._listed: set[str] = set()  # packages of the head in the bucket
        self._waiting: dict[int, tuple[Head, bytes]] = {}
        self.bytes_sent = 0
        self.offered: int | None = None
        """The newest version that readers of the bucket can fetch."""

    def __str__(self) -> str:
        offered = "nothing yet" if self.offered is None else f"version {self.offered}"
        return f"{offered} in {self._bucket.url}, {self.bytes_sent / 1e6:.0f} MB sent"

    async def step(self) -> bool:
        """Writes what is ready; False if nothing was. A StorageError leaves a bucket from which it can go on."""
        there = await self._begin() if self._there is None else self._there
        if (data := self._read_head()) is not None:
            head = read_head(data, self._origin, self._run)
            if head.sequence > max(self._sequence, *self._waiting, -1):
                self._waiting[head.sequence] = head, data
                if len(self._waiting) > MAX_HEADS:
                    del self._waiting[min(self._waiting)]
        if not self._waiting:
            return False
        wrote = await self._put_next_package(there)
        ready = [number for number, (head, _) in self._waiting.items() if _finished(head) <= _whole(there)]
        if ready:
            await self._put_head(*self._waiting[max(ready)], there)
        return wrote or bool(ready)

    async def _put_next_package(self, there: dict[str, bool]) -> bool:
        """Writes one package that is whole in the store, for the waiting head that lacks fewest: heads that come faster
        than packages go out must not keep each other from being finished."""
        lacks = {
            number: sorted(
                (entry for entry in head.packages if entry.root and not there.get(entry.name)),
                key=lambda entry: entry.number,
            )
            for number, (head, _) in self._waiting.items()
        }
        for number in sorted(lacks, key=lambda number: (len(lacks[number]), -number)):
            for entry in lacks[number]:
                if closing_root(self._store.folder(entry.name)):
                    there[entry.name] = False
                    self.bytes_sent += await self._bucket.put_package(self._store, entry.name, self._origin)
                    there[entry.name] = True
                    return True
        return False

    async def _begin(self) -> dict[str, bool]:
        """What an earlier process has left in the bucket; an error if the bucket is another run's."""
        if (data := await self._bucket.head()) is not None:
            try:
                head = read_head(data, self._origin, self._run)
            except ShardcastError as error:
                raise ConfigError(
                    f"--to {self._bucket.url}: holds versions of something else ({error}); give another prefix"
                ) from None
            self._took(head)
        self._there = await self._bucket.packages()
        return self._there

    def _read_head(self) -> bytes | None:
        try:
            return read_regular(self._store.path / HEAD, MAX_HEAD)
        except FileNotFoundError:
            return None

    async def _put_head(self, head: Head, data: bytes, there: dict[str, bool]) -> None:
        """Writes a head, and removes packages that neither it nor the one before lists, which may still be read."""
        await self._bucket.put_head(data)
        before = self._listed
        self._took(head)
        self._waiting = {number: found for number, found in self._waiting.items() if number > head.sequence}
        coming = {entry.name for waiting, _ in self._waiting.values() for entry in waiting.packages}
        for name in there.keys() - self._listed - before - coming:
            await self._bucket.remove_package(name)
            del there[name]

    def _took(self, head: Head) -> None:
        self._sequence, self.offered = head.sequence, head.newest(closed=True)
        self._listed = {entry.name for entry in head.packages}


async def keep_mirroring(mirror: Mirror, on_note: Callable[[str], None]) -> None:
    """Mirrors until it is cancelled; a bucket that refuses is tried again with exponential backoff."""
    pause = LOOK_S
    while True:
        try:
            pause = 0.0 if await mirror.step() else LOOK_S
        except ConfigError:
            raise
        except (ShoalError, OSError) as error:
            on_note(str(error))
            pause = min(MAX_PAUSE_S, 2 * max(pause, LOOK_S))
        await asyncio.sleep(pause)


def _finished(head: Head) -> set[str]:
    return {entry.name for entry in head.packages if entry.root}


def _whole(there: Mapping[str, bool]) -> set[str]:
    return {name for name, whole in there.items() if whole}
