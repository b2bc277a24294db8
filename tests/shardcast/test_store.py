"""A package that is held is not removed, whatever happens in between."""

import fcntl
from pathlib import Path

import pytest

from shoal.shardcast.format.manifest import Index
from shoal.shardcast.format.store import Store, take_hold
from tests.support.origin_and_relays import KEY, origin_at

NAME = "000001-full-00112233aabbccdd"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.folder(NAME).mkdir()
    (store.folder(NAME) / "manifest.jsonl").write_bytes(b"")
    return store


def test_nobody_takes_hold_of_a_package_that_is_going(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename
    holds: list[int | None] = []

    def look_first(self: Path, target: Path) -> Path:
        holds.append(take_hold(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look_first)
    assert store.remove(NAME)
    assert holds == [None]


def test_who_locks_a_package_after_it_went_does_not_hold_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def remove_first(descriptor: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            assert store.remove(NAME)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert take_hold(store.folder(NAME)) is None


def test_a_manifest_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1)
        name = origin.publisher.entries[0].name
        manifest = origin.store.folder(name) / "manifest.jsonl"
        index = Index(manifest.parent)
        index.refresh()
        lines = manifest.read_bytes().splitlines(keepends=True)
        again = manifest.with_name("again")
        again.write_bytes(b"".join([lines[0], *reversed(lines[2:-1])]) + b" " * 2000 + b"\n")
        again.replace(manifest)
        with pytest.raises(Exception, match="manifest line"):
            index.refresh()
        assert index.closing is None
        assert sorted(index.pieces) == list(range(1, len(lines) - 2))
        assert origin.store.head(KEY.address) is not None
