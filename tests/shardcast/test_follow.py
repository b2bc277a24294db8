"""A directory that is followed: what appears is offered, what was taken back is no more, and deltas go out where they
pay."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shoal.errors import StorageError
from shoal.shardcast.format.hashing import content_of
from shoal.shardcast.format.records import content_root
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.directory_follower import Follower, follow, version_number
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.server import Server, serving
from tests.support.origin_and_relays import KEY, RUN, client_of, contents

VALUES = 300_000


class Place:
    """A directory of versions and the publisher that follows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = path / "versions"
        self.versions.mkdir()
        self.store = Store(path / "store")
        self.said: list[str] = []
        self.start()

    def start(self, full_every: int = 4) -> None:
        self.publisher = Publisher(self.store, KEY, RUN)
        self.follower = Follower(self.versions, Versions(self.publisher, full_every), self.said.append)

    def restart(self) -> None:
        self.publisher.close()
        self.start()

    def put(self, number: int, bits: np.ndarray[tuple[int], np.dtype[np.uint16]], *, bf16: bool = True) -> Path:
        """A version in one move, with a file that never changes."""
        staging = self.path / "half"
        staging.mkdir()
        values = torch.from_numpy(bits.view(np.int16))
        save_file({"w": values.view(torch.bfloat16) if bf16 else values}, staging / "model.safetensors")
        (staging / "config.json").write_text('{"hidden": 1}')
        return staging.rename(self.versions / f"v{number:06d}")

    def offered(self) -> dict[int, str]:
        """The kinds of package of each version."""
        found: dict[int, str] = {}
        for entry in self.publisher.entries:
            found[entry.number] = f"{found.get(entry.number, '')} {entry.kind}".strip()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.publisher.close()


def drift(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Weights of which one in fifty moves by one bit at each version."""
    bits = np.random.default_rng(0).integers(0x3C00, 0x3F00, VALUES).astype(np.uint16)
    for step in range(number):
        bits[np.random.default_rng(step + 1).integers(0, VALUES, VALUES // 50)] += 1
    return bits


def test_versions_are_offered_as_they_appear_with_their_roots(place: Place) -> None:
    place.follower.sync()
    assert place.offered() == {}
    path = place.put(0, drift(0))
    place.follower.sync()
    (entry,) = place.publisher.entries
    assert (entry.number, entry.root) == (0, content_root(0, entry.piece_size, content_of(path, entry.piece_size)))
    assert "version 0 published" in place.said[-1]
    place.follower.sync()
    assert len(place.said) == 1


def test_deltas_go_out_between_full_versions_and_lead_to_the_same_bytes(place: Place) -> None:
    with serving(Server(place.store)) as server, client_of(place.path / "client", server.url) as client:
        for number in range(6):
            place.put(number, drift(number))
            place.follower.sync()
            assert contents(client.fetch(number)) == contents(place.versions / f"v{number:06d}")
        assert place.offered() == {0: "full", 1: "delta", 2: "delta", 3: "delta", 4: "delta full", 5: "delta"}
        sizes = {entry.number: entry.size or 0 for entry in place.publisher.entries}
        assert sizes[1] < sizes[0] / 10
        with client_of(place.path / "late", server.url) as late:  # has nothing but what is offered now
            assert contents(late.fetch(5)) == contents(place.versions / "v000005")


def test_other_dtypes_and_changes_that_do_not_pay_go_out_whole(place: Place) -> None:
    place.put(0, drift(0), bf16=False)
    place.put(1, drift(1), bf16=False)
    place.follower.sync()
    noise = np.random.default_rng(9).integers(0, 1 << 16, VALUES).astype(np.uint16)
    place.put(2, noise)
    place.put(3, noise[::-1].copy())
    place.follower.sync()
    assert place.offered() == {0: "full", 1: "full", 2: "full", 3: "full"}


def test_an_origin_that_is_started_again_publishes_nothing_twice(place: Place) -> None:
    for number in range(3):
        place.put(number, drift(number))
        place.follower.sync()
    before = place.publisher.entries
    place.restart()
    place.follower.sync()
    assert place.publisher.entries == before
    place.put(3, drift(3))
    place.put(4, drift(4))
    place.follower.sync()
    assert (place.offered()[3], place.offered()[4]) == ("full", "delta"), "the first after a start is a full one"


@pytest.mark.parametrize("down", [False, True])
def test_what_was_taken_back_is_offered_no_more_and_what_replaces_it_is(place: Place, down: bool) -> None:
    for number in range(4):
        place.put(number, drift(number))
        place.follower.sync()
    roots = {entry.number: entry.root for entry in place.publisher.entries}
    for number in (2, 3):
        (place.versions / f"v{number:06d}").rename(place.path / f"gone-{number}")
    if down:
        place.publisher.close()
    else:
        place.follower.sync()
        assert set(place.offered()) == {0, 1}
    place.put(2, drift(7))
    if down:
        place.start()
    place.follower.sync()
    assert set(place.offered()) == {0, 1, 2}
    assert place.publisher.entries[-1].root != roots[2]
    head = place.store.head(KEY.address, RUN)
    assert head is not None
    assert {roots[2], roots[3]} <= set(head.retracted)


def test_versions_that_were_pruned_are_not_taken_back(place: Place) -> None:
    for number in range(8):
        place.put(number, drift(number))
        place.follower.sync()
        if number > 2:
            (place.versions / f"v{number - 2:06d}").rename(place.path / f"gone-{number}")
    assert {0, 3, 4, 5, 6, 7} <= set(place.offered()), "the last five, and the base model"
    head = place.store.head(KEY.address, RUN)
    assert head is not None
    assert head.retracted == ()


def test_what_cannot_be_published_is_said_once_and_passed_over(place: Place) -> None:
    path = place.put(0, drift(0))
    (path / "a name with spaces").write_text("x")
    place.follower.sync()
    place.follower.sync()
    assert place.offered() == {}
    assert len(place.said) == 1
    assert "not published" in place.said[0]
    place.put(1, drift(1))
    place.follower.sync()
    assert set(place.offered()) == {1}


def test_weights_of_which_no_delta_can_be_made_go_out_whole(place: Place) -> None:
    for number in range(2):
        folder = place.versions / f"v{number:06d}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b'{"BF16"' + bytes([number]) * 5000)
        place.follower.sync()
    assert place.offered() == {0: "full", 1: "full"}, place.said


def test_a_package_that_is_gone_from_the_origins_disk_is_published_again(place: Place) -> None:
    path = place.put(0, drift(0))
    place.follower.sync()
    (gone,) = place.publisher.entries
    place.publisher.close()
    shutil.rmtree(place.store.folder(gone.name))
    place.start()
    assert place.offered() == {}
    place.follower.sync()
    (again,) = place.publisher.entries
    assert (again.root, again.id != gone.id) == (gone.root, True)
    assert contents(place.store.folder(again.name) / "files") == contents(path)


def test_what_the_disk_refuses_is_said_once_and_published_when_it_has_room(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: bytes) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("shoal.shardcast.origin.directory_follower.RETRY_S", 0.0)
    place.put(0, drift(0))
    with monkeypatch.context() as patch:
        patch.setattr(place.store, "write_head", full)
        place.follower.sync()
        place.follower.sync()
    assert place.offered() == {}
    assert len(place.said) == 1
    assert "the disk is full" in place.said[0]
    place.follower.sync()
    assert place.offered() == {0: "full"}


def test_a_version_that_is_out_is_not_taken_back_because_its_base_for_the_next_could_not_be_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("shoal.shardcast.origin.directory_follower.RETRY_S", 0.0)
    place.put(0, drift(0))
    with monkeypatch.context() as patch:
        patch.setattr("shoal.shardcast.origin.versions.link_or_copy", refuse)
        place.follower.sync()
        place.follower.sync()
    place.put(1, drift(1))
    place.follower.sync()
    assert set(place.offered()) == {0, 1}
    head = place.store.head(KEY.address, RUN)
    assert head is not None
    assert head.retracted == ()


def test_what_ends_the_following_thread_is_raised(place: Place) -> None:
    def fail(_: str) -> None:
        raise KeyError("a defect")

    place.put(0, drift(0))
    place.follower.on_note = fail
    with pytest.raises(KeyError, match="a defect"):
        asyncio.run(asyncio.wait_for(follow(place.follower, 0.01), 10))


def test_an_origin_whose_directory_is_removed_ends_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    command = [sys.executable, "-m", "shoal", "origin", str(tmp_path / "versions"), "--port", "0"]
    command += ["--store", str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as origin:
        assert origin.stdout is not None
        assert "origin of run" in origin.stdout.readline()
        (tmp_path / "versions").rmdir()
        try:
            said, _ = origin.communicate(timeout=15)
        finally:
            origin.kill()
    assert origin.returncode != 0
    assert "it was removed" in said


def test_hidden_files_are_no_part_of_a_version(place: Place) -> None:
    path = place.put(0, drift(0))
    (path / ".manifest.json").write_text("{}")
    place.follower.sync()
    index = place.store.folder(place.publisher.entries[0].name) / "files"
    assert sorted(p.name for p in index.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("12", 12),
        ("v000012", 12),
        ("v12.safetensors", 12),
        ("v12.partial", None),
        (".v12", None),
        ("x12", None),
        ("v²", None),
    ],
)
def test_names_of_versions(name: str, number: int | None) -> None:
    assert version_number(name) == number
