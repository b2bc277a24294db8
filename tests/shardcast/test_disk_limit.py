"""Versions on a lent disk: never more bytes than its owner allows, and a clear error where one version is too many."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import LimitError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from tests.support.disk_watch import DiskWatch
from tests.support.origin_and_relays import KEY, RUN, Origin, contents, origin_at

MIB = 1 << 20
WITHIN = 1.05  # of the limit


@contextmanager
def lent(path: Path, most: int) -> Iterator[tuple[Origin, Puller, DiskWatch]]:
    """An origin, a client whose disk is limited, and what was on it at the most."""
    with origin_at(path / "origin") as origin, DiskWatch(path / "client") as seen:
        sources = [origin.server.url]
        with Puller(Store(path / "client"), sources, KEY.address, RUN, keep=4, max_bytes=lambda: most) as client:
            yield origin, client, seen


def test_versions_that_follow_each_other_stay_within_the_limit(tmp_path: Path) -> None:
    most = int(2.3 * MIB)
    with lent(tmp_path, most) as (origin, client, seen):
        for number in range(5):
            folder = origin.publish(number, mib=1.0)
            assert contents(client.fetch(number)) == contents(folder)
    assert MIB < seen.peak <= WITHIN * most


def test_a_version_that_is_in_use_is_neither_removed_nor_is_another_one_fetched_beside_it(tmp_path: Path) -> None:
    most = int(1.5 * MIB)
    with lent(tmp_path, most) as (origin, client, seen):
        first = client.fetch(0) if origin.publish(0, mib=1.0) else None
        assert first is not None
        with client.store.hold(first.parent.name):
            origin.publish(1, mib=1.0)
            assert client.latest(5.0, after=0, closed=True) == 1
            client.prefetch(1, wait_s=5.0)
            assert first.exists()
            with pytest.raises(LimitError, match=r"--disk: version 1 takes .* raise it by"):
                client.fetch(1, wait_s=5.0)
        assert contents(client.fetch(1, wait_s=5.0)) == contents(origin.versions[1])
        assert not first.exists()
    assert seen.peak <= WITHIN * most


def test_a_limit_below_one_version_is_an_error_that_says_how_much_is_missing(tmp_path: Path) -> None:
    with lent(tmp_path, MIB) as (origin, client, seen):
        origin.publish(0, mib=3.0)
        with pytest.raises(LimitError, match=r"takes 3\.15 MB .*may have 1\.05 MB; raise it by 2\.1 MB"):
            client.fetch(0, wait_s=5.0)
    assert seen.peak < MIB
