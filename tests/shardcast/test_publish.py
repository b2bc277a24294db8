"""Publishing on a disk that refuses, and from two threads at once."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import StorageError
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin import publish
from shoal.shardcast.origin.publish import Publisher
from tests.support.origin_and_relays import KEY, RUN, publish_directory, write_version


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with Publisher(Store(tmp_path / "store"), KEY, RUN) as publisher:
        publish_directory(publisher, 1, write_version(tmp_path / "v1", 0.1))
        yield publisher


def full(_: bytes) -> None:
    raise StorageError("the disk is full")


def on_disk(publisher: Publisher) -> list[int]:
    head = publisher.store.head(KEY.address, RUN)
    assert head is not None
    return [entry.number for entry in head.packages]


def test_a_version_that_does_not_fit_leaves_nothing_behind(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(patch: pytest.MonkeyPatch) -> None:
        with publisher.publish(2) as package, package.file("model.safetensors") as file:
            file.write(b"x" * 100)
            patch.setattr(publisher.store, "write_head", full)
            raise StorageError("no room for a piece")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no room for a piece"):
        write(patch)
    assert [entry.number for entry in publisher.entries] == [1]
    assert [name[:6] for name in publisher.store.packages()] == ["000001"]
    publisher.retract([9])
    assert on_disk(publisher) == [1]


def test_what_could_not_be_taken_back_is_still_offered_and_can_be_taken_back_later(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(publisher.store, "write_head", full)
        with pytest.raises(StorageError, match="the disk is full"):
            publisher.retract([1])
    assert [entry.number for entry in publisher.entries] == on_disk(publisher) == [1]
    publisher.retract([1])
    assert publisher.entries == []
    assert on_disk(publisher) == []


def test_a_package_that_begins_while_another_thread_writes_the_head_is_not_cleared_away(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[threading.Thread] = []

    class Watched(publish.Package):
        def __init__(self, *arguments: object) -> None:
            others.append(threading.Thread(target=publisher.retract, args=([99],)))
            others[-1].start()
            others[-1].join(0.2)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(publish, "Package", Watched)
    with publisher.publish(2) as package, package.file("model.safetensors") as file:
        file.write(b"x" * 100)
    others[0].join()
    assert on_disk(publisher) == [1, 2]
    assert (package.folder / "files" / "model.safetensors").read_bytes() == b"x" * 100
