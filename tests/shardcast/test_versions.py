"""Deltas over the wire: what a follower builds is the version itself, and a joiner takes the fewest bytes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shoal.errors import DeltaError, ShardcastError
from shoal.shardcast.delta.assemble import find_version
from shoal.shardcast.fetch.downloader import KEEP
from shoal.shardcast.format.records import Base
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.versions import Versions
from shoal.wait import wait_until
from tests.support.origin_and_relays import Origin, client_of, contents, metric, origin_at, relay_at
from tests.support.until import until

pytest.importorskip("shoal.shardcast.delta.delta")


def random_bits() -> torch.Tensor:
    return torch.randint(-(1 << 15), 1 << 15, (3 << 19,), dtype=torch.int16)


class Trainer:
    """Makes versions that differ in a few weights, or in all."""

    def __init__(self, origin: Origin, path: Path, full_every: int) -> None:
        self.versions = Versions(origin.publisher, full_every)
        self.path = path
        self.weights = random_bits()
        self.made: dict[int, Path] = {}

    def step(self, number: int, share: float = 0.001) -> str:
        self.weights = self.weights + (torch.rand(self.weights.numel()) < share).to(torch.int16)
        folder = self.path / f"t{number}"
        folder.mkdir()
        save_file({"w": self.weights.view(torch.bfloat16)}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        self.made[number] = folder
        return self.versions.publish(number, folder)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    with origin_at(tmp_path) as made:
        yield made


def test_a_follower_builds_each_version_from_its_delta_bit_for_bit(origin: Origin, tmp_path: Path) -> None:
    trainer = Trainer(origin, tmp_path, full_every=10)
    with (
        relay_at(tmp_path / "relay", origin.server.url) as relay,
        client_of(tmp_path / "client", relay.url) as client,
    ):
        for number in range(4):
            root = trainer.step(number)
            files = client.fetch(number)
            assert contents(files) == contents(trainer.made[number])
            assert client.held()[number] == root
        full = (trainer.made[0] / "model.safetensors").stat().st_size
        assert metric(relay, "bytes_sent_total") < 1.3 * full
        assert [entry.kind for entry in origin.publisher.entries] == ["full", "delta", "delta", "delta"]


def test_a_late_joiner_takes_the_full_version_and_the_deltas_after_it(origin: Origin, tmp_path: Path) -> None:
    trainer = Trainer(origin, tmp_path, full_every=3)
    for number in range(5):
        trainer.step(number)
    with client_of(tmp_path / "client", origin.server.url) as client:
        assert contents(client.fetch(4)) == contents(trainer.made[4])
        sizes = {(e.number, e.kind): e.size or 0 for e in origin.publisher.entries}
        wanted = sizes[3, "full"] + sizes[4, "delta"]
        until(lambda: client.counts["bytes_fetched"] >= wanted)  # a transfer is counted after its version is whole
        assert client.counts["bytes_fetched"] == wanted
        assert client.counts["packages_fetched"] == 2
        assert [name[:11] for name in client.store.packages()] == ["000003-full"], "a delta that was applied goes"


def test_a_delta_that_does_not_pay_becomes_a_full_version(origin: Origin, tmp_path: Path) -> None:
    trainer = Trainer(origin, tmp_path, full_every=10)
    trainer.step(0)
    trainer.weights = random_bits()
    trainer.step(1)
    assert [(entry.number, entry.kind) for entry in origin.publisher.entries] == [(0, "full"), (1, "full")]
    with client_of(tmp_path / "client", origin.server.url) as client:
        assert contents(client.fetch(1)) == contents(trainer.made[1])


def test_a_base_that_changed_on_the_disk_is_fetched_again_before_a_delta_is_applied(
    origin: Origin, tmp_path: Path
) -> None:
    trainer = Trainer(origin, tmp_path, full_every=10)
    trainer.step(0)
    with client_of(tmp_path / "client", origin.server.url) as client:
        base = client.fetch(0)
        with (base / "model.safetensors").open("r+b") as file:
            file.seek(5000)
            file.write(b"?")
        trainer.step(1)
        while client.latest(1.0, closed=True) != 1:
            continue
        said: list[str] = []
        client._on_note = said.append
        assert contents(client.fetch(1)) == contents(trainer.made[1])
        assert "the base of 000001-delta" in said[0]


def test_a_delta_that_does_not_give_its_version_is_refused_and_the_full_one_fetched(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeltaError("damaged")

    monkeypatch.setattr("shoal.shardcast.delta.delta.apply", refuse)
    trainer = Trainer(origin, tmp_path, full_every=2)
    with client_of(tmp_path / "client", origin.server.url) as client:
        for number in range(3):
            trainer.step(number)
            while client.latest(1.0, closed=True) != number:
                continue
            if number == 1:
                with pytest.raises(ShardcastError, match=r"000001-delta.*damaged"):
                    client.fetch(1, wait_s=60)
            else:
                assert contents(client.fetch(number)) == contents(trainer.made[number])


def test_a_version_put_together_here_goes_when_it_is_taken_back(origin: Origin, tmp_path: Path) -> None:
    trainer = Trainer(origin, tmp_path, full_every=10)
    with client_of(tmp_path / "client", origin.server.url) as client:
        for number in range(2):
            trainer.step(number)
            files = client.fetch(number)
        assert "made" in files.parent.name
        trainer.versions.retract([1])
        wait_until(lambda: not files.exists(), 10, "the retracted version is still there", pause_s=0.01)
        assert client.held().keys() == {0}


def test_a_version_put_together_here_is_hashed_again_by_the_next_process(origin: Origin, tmp_path: Path) -> None:
    trainer = Trainer(origin, tmp_path, full_every=10)
    trainer.step(0)
    with client_of(tmp_path / "client", origin.server.url) as client:
        client.fetch(0)
        trainer.step(1)
        files = client.fetch(1)
    assert "made" in files.parent.name
    assert json.loads((files.parent / "made.json").read_bytes())["root"].startswith(files.parent.name[-16:])
    with client_of(tmp_path / "client", origin.server.url) as client:
        assert client.fetch(1) == files
    with (files / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"?!")
    with client_of(tmp_path / "client", origin.server.url) as client:
        assert contents(client.fetch(1)) == contents(trainer.made[1])


def test_a_base_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardcastError, match="version 7 with root abab"):
        find_version(Store(tmp_path), Base(number=7, root="ab" * 32))


def test_an_older_version_that_is_asked_for_is_not_the_first_to_go(origin: Origin, tmp_path: Path) -> None:
    """A validator goes back to versions that others were made after."""
    trainer = Trainer(origin, tmp_path, full_every=10)
    with client_of(tmp_path / "client", origin.server.url) as client:
        for number in range(8):
            trainer.step(number)
            client.fetch(number)
        for number in (4, 3, 7, 3):
            assert contents(client.fetch(number)) == contents(trainer.made[number]), number
        assert len(client.store.made()) <= KEEP
