"""Versions by way of a real S3-compatible server: readers use plain GETs, and believe signatures alone."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from shoal.errors import ConfigError, ShardcastError, StorageError
from shoal.files import read_regular
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.fetch.polling import MAX_PAUSE_S, MIN_PAUSE_S, Polling
from shoal.shardcast.format.manifest import MANIFEST
from shoal.shardcast.format.records import read_head
from shoal.shardcast.format.store import HEAD, Store
from shoal.shardcast.serve.bucket import Bucket, Mirror
from tests.support.origin_and_relays import KEY, RUN, Origin, client_of, contents, fails_to_fetch, origin_at
from tests.support.servers.s3 import s3_server
from tests.support.until import until


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server("weights") as url:
        yield url


def bucket_of(s3: str, path: Path, bucket: str = "weights") -> Bucket:
    return Bucket(f"s3://{bucket}/{path.name}", {"endpoint": s3, "region": "us-east-1"})


def url_of(s3: str, path: Path) -> str:
    return f"{s3}/weights/{path.name}"


class Filling:
    """A relay's store that a puller fills, and the mirror that takes it to the bucket."""

    def __init__(self, path: Path, origin: Origin, bucket: Bucket) -> None:
        self.store = Store(path)
        self.puller = Puller(self.store, [origin.server.url], KEY.address, RUN, mirror=True)
        self.mirror = Mirror(self.store, bucket, KEY.address, RUN)

    def catch_up(self, version: int) -> None:
        until(lambda: version in self.puller.held())
        until(lambda: not asyncio.run(self.mirror.step()) and self.mirror.offered == version)


@contextmanager
def filling(path: Path, origin: Origin, bucket: Bucket) -> Iterator[Filling]:
    found = Filling(path, origin, bucket)
    with found.puller:
        yield found


def test_versions_reach_a_reader_through_a_bucket_alone(tmp_path: Path, s3: str) -> None:
    with (
        origin_at(tmp_path) as origin,
        filling(tmp_path / "relay", origin, bucket_of(s3, tmp_path)) as relay,
        client_of(tmp_path / "client", url_of(s3, tmp_path)) as client,
    ):
        for number in (1, 2):
            made = origin.publish(number)
            relay.catch_up(number)
            assert contents(client.fetch(number)) == contents(made)
        assert not client.counts["lies"]
        assert not client.counts["failures"]


def test_what_is_no_longer_listed_leaves_the_bucket_one_head_later(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        for number in range(1, 9):
            origin.publish(number, mib=0.1)
            relay.catch_up(number)
            listed = {entry.name for entry in origin.publisher.entries}
            assert listed <= asyncio.run(bucket.packages()).keys()
        assert len(asyncio.run(bucket.packages())) <= len(listed) + 1


def test_a_mirror_that_was_killed_goes_on_and_writes_nothing_twice(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        origin.publish(1, mib=0.1)
        relay.catch_up(1)
        origin.publish(2, mib=0.1)
        until(lambda: 2 in relay.puller.held())
        name = next(entry.name for entry in origin.publisher.entries if entry.number == 2)
        asyncio.run(bucket._put(f"{name}/files/model.safetensors", b"half of it", {}))  # as far as a killed one came
        assert asyncio.run(bucket.packages())[name] is False
        relay.mirror = Mirror(relay.store, bucket, KEY.address, RUN)
        relay.catch_up(2)
        assert relay.mirror.bytes_sent == sum(len(data) for data in contents(origin.versions[2]).values())
        with client_of(tmp_path / "client", url_of(s3, tmp_path)) as client:
            assert contents(client.fetch(2)) == contents(origin.versions[2])


class SlowBucket(Bucket):
    """A version comes out while the first package is on its way; every head is compared with what is there."""

    def __init__(self, s3: str, path: Path, meanwhile: Callable[[], None]) -> None:
        super().__init__(f"s3://weights/{path.name}", {"endpoint": s3, "region": "us-east-1"})
        self._meanwhile = meanwhile
        self.heads: list[list[int]] = []

    async def put_package(self, store: Store, name: str, origin: str) -> int:
        if name.startswith("000001"):
            self._meanwhile()
        return await super().put_package(store, name, origin)

    async def put_head(self, data: bytes) -> None:
        there = {name for name, whole in (await self.packages()).items() if whole}
        finished = [entry for entry in read_head(data, KEY.address, RUN).packages if entry.root]
        assert {entry.name for entry in finished} <= there
        self.heads.append(sorted(entry.number for entry in finished))
        await super().put_head(data)


def test_a_slow_link_brings_every_version_and_no_head_before_its_packages(tmp_path: Path, s3: str) -> None:
    with origin_at(tmp_path) as origin:

        def publish_another() -> None:
            origin.publish(2, mib=0.1)
            until(lambda: 2 in relay.puller.held())

        bucket = SlowBucket(s3, tmp_path, publish_another)
        with filling(tmp_path / "relay", origin, bucket) as relay:
            origin.publish(1, mib=0.1)
            until(lambda: 1 in relay.puller.held())
            until(lambda: asyncio.run(relay.mirror.step()) and relay.mirror.offered == 1)
            relay.catch_up(2)
            assert [1] in bucket.heads
            assert bucket.heads[-1] == [1, 2]


def test_a_package_that_the_disk_has_torn_does_not_reach_the_bucket(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        origin.publish(1, mib=0.1)
        until(lambda: 1 in relay.puller.held())
        name = origin.publisher.entries[0].name
        (relay.store.folder(name) / "files" / "config.json").write_text("{}")
        with pytest.raises(ShardcastError, match="damaged; fetch it again"):
            until(lambda: asyncio.run(relay.mirror.step()))
        assert not any(asyncio.run(bucket.packages()).values())
        assert asyncio.run(bucket.head()) is None


def test_a_bucket_of_another_origin_is_not_written_over(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    asyncio.run(bucket.put_head(b"[]"))
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        origin.publish(1, mib=0.1)
        with pytest.raises(ConfigError, match=r"holds versions of something else .* give another prefix"):
            until(lambda: asyncio.run(relay.mirror.step()))


def test_whatever_a_bucket_changes_is_not_believed(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        origin.publish(1)
        relay.catch_up(1)
        name = origin.publisher.entries[0].name
        file = f"{name}/files/model.safetensors"
        data = bytearray(httpx2.get(f"{url_of(s3, tmp_path)}/{file}").raise_for_status().content)
        data[1000] ^= 1
        asyncio.run(bucket._put(file, bytes(data), {}))
        with client_of(tmp_path / "client", url_of(s3, tmp_path)) as client:
            fails_to_fetch(client, 1, "is not what")
            assert 1 not in client.held()


def test_an_object_store_that_refuses_is_an_error_that_names_it(tmp_path: Path, s3: str) -> None:
    store = Store(tmp_path / "relay")
    mirror = Mirror(store, bucket_of(s3, tmp_path, "missing"), KEY.address, RUN)
    with pytest.raises(StorageError, match=f"s3://missing/{tmp_path.name}.*cannot be"):
        asyncio.run(mirror.step())


def test_an_address_that_is_no_object_store_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--to ftp://bucket: .*give a directory or s3://BUCKET"):
        Bucket("ftp://bucket", {})


def test_a_source_that_cannot_wait_is_asked_rarely(tmp_path: Path, s3: str) -> None:
    """Long polls bring news at once; elsewhere the pause grows with the time since the last news, up to a bound."""
    polling = Polling()
    now = time.monotonic()
    assert polling.pause(new=True, asked=now, wait_s=20) == 0
    assert polling.pause(new=False, asked=now, wait_s=20) == MIN_PAUSE_S
    assert polling.pause(new=False, asked=now - 20, wait_s=20) == 0, "it has waited itself"
    polling._news -= 60
    assert polling.pause(new=False, asked=now, wait_s=20) == pytest.approx(3.0, abs=0.1)
    polling._news -= 1e6
    assert polling.pause(new=False, asked=now, wait_s=20) == MAX_PAUSE_S


def test_an_unchanged_head_is_not_sent_again(tmp_path: Path, s3: str) -> None:
    bucket = bucket_of(s3, tmp_path)
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket) as relay:
        origin.publish(1, mib=0.1)
        relay.catch_up(1)
        with client_of(tmp_path / "client", url_of(s3, tmp_path)) as client:
            client.fetch(1)
            until(lambda: client.counts["heads_unchanged"] >= 2)


def test_a_manifest_in_the_bucket_is_the_whole_one(tmp_path: Path, s3: str) -> None:
    with origin_at(tmp_path) as origin, filling(tmp_path / "relay", origin, bucket_of(s3, tmp_path)) as relay:
        origin.publish(1)
        relay.catch_up(1)
        name = origin.publisher.entries[0].name
        answer = httpx2.get(f"{url_of(s3, tmp_path)}/{name}/{MANIFEST}")
        assert sorted(answer.content.splitlines()) == sorted(
            read_regular(relay.store.folder(name) / MANIFEST).splitlines()
        )
        assert "immutable" in answer.headers["cache-control"]
        assert httpx2.get(f"{url_of(s3, tmp_path)}/{HEAD}").headers["cache-control"] == "no-cache"
