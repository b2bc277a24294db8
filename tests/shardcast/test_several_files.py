"""Versions of several files: hashed once, few on a disk, whole or not at all whatever becomes of one of eight."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from shoal.client.weight_source import CastChannel
from shoal.errors import DeltaError, ShardcastError, WaitError
from shoal.models.base import write_base_version
from shoal.models.load import Policy
from shoal.models.weights import read_weights, weight_files, write_weights
from shoal.protocol.version_directory import DirectoryChannel
from shoal.shardcast.delta import delta
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin import versions
from shoal.shardcast.origin.publish import Package
from shoal.shardcast.origin.versions import Versions
from shoal.telemetry.metrics import MetricsWriter
from tests.support.origin_and_relays import (
    KEY,
    RUN,
    Origin,
    changing_relay,
    client_of,
    metric,
    origin_at,
    publish_directory,
    write_version,
)
from tests.support.sharded_versions import VALUES, Trainer, counted_hashing, equal, visible

THIRD = "model-00003-of-00008.safetensors"


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    with origin_at(tmp_path) as made:
        yield made


@pytest.fixture
def trainer(origin: Origin, tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "weights", Versions(origin.publisher, full_every=100))


def size_of(origin: Origin, number: int, kind: str) -> int:
    return next(e.size or 0 for e in origin.publisher.entries if (e.number, e.kind) == (number, kind))


def test_every_byte_is_hashed_once_at_the_origin_and_once_at_a_worker(
    origin: Origin, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_hashing(monkeypatch) as counted, client_of(tmp_path / "client", origin.server.url) as client:
        for number in range(3):
            counted.total = 0
            trainer.step(number)
            kind = "delta" if number else "full"
            sent = size_of(origin, number, kind)
            due = trainer.size + sent if number else trainer.size  # a delta is bytes of its own
            assert trainer.size <= counted.total < 1.01 * due, f"version {number} at the origin"
            counted.total = 0
            assert visible(client.fetch(number)) == visible(trainer.folder(number))
            assert trainer.size <= counted.total < 1.01 * due, f"version {number} at a worker"
        assert len(weight_files(trainer.folder(2))) == 8
        assert [e.kind for e in origin.publisher.entries] == ["full", "delta", "delta"]


def disk_bytes(folder: Path) -> int:
    """What a directory takes, each file once however many names it has; what goes meanwhile is not counted."""
    seen: dict[int, int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                facts = (Path(where) / name).stat()
            except FileNotFoundError:
                continue
            seen[facts.st_ino] = facts.st_blocks * 512
    return sum(seen.values())


@pytest.mark.parametrize("deltas", [True, False])
def test_a_worker_has_at_most_two_versions_on_its_disk(
    origin: Origin, trainer: Trainer, tmp_path: Path, deltas: bool
) -> None:
    """While it follows, the one in use held, also when several come before it asks for the next."""
    trainer.versions = Versions(origin.publisher, full_every=100, deltas=deltas)
    peak, ended = 0, threading.Event()

    def measure() -> None:
        nonlocal peak
        while not ended.wait(0.002):
            peak = max(peak, disk_bytes(tmp_path / "node"))

    trainer.step(0)
    watcher = threading.Thread(target=measure)
    watcher.start()
    try:
        with (
            MetricsWriter(tmp_path / "metrics.jsonl") as metrics,
            CastChannel(tmp_path / "node", [origin.server.url], KEY.address, RUN, "w", 20, metrics, keep=2) as channel,
        ):
            for number in (1, 2, 4, 7, 8):  # of those between nothing is asked for
                at = channel.latest()
                for newer in range((at.number if at else 0) + 1, number + 1):
                    trainer.step(newer)
                    deadline = time.monotonic() + 20
                    while (here := channel.latest()) is None or here.number < newer:
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                found = channel.version(number)
                assert found is not None
                assert equal(dict(read_weights(channel.fetch(found), "bfloat16")), trainer.weights)
    finally:
        ended.set()
        watcher.join()
    assert 1.9 * trainer.size < peak < 2.1 * trainer.size


def test_a_base_model_stays_beside_small_versions_of_it(origin: Origin, trainer: Trainer, tmp_path: Path) -> None:
    """As adapters are: the bound is on bytes, and a base that went would be fetched whole again."""
    trainer.step(0)
    with Puller(Store(tmp_path / "client"), [origin.server.url], KEY.address, RUN, keep=2) as client:
        client.fetch(0)
        for number in range(1, 5):
            publish_directory(origin.publisher, number, write_version(tmp_path / f"small-{number}", mib=0.1))
            client.fetch(number)
        assert client.held().keys() == {0, 1, 2, 3, 4}


def test_a_newcomer_fetches_the_newest_version_and_not_the_base_model(
    origin: Origin, trainer: Trainer, tmp_path: Path
) -> None:
    trainer.versions = Versions(origin.publisher, full_every=2)
    for number in range(4):
        trainer.step(number)
    sent = metric(origin.server, "bytes_sent_total")
    with (
        MetricsWriter(tmp_path / "metrics.jsonl") as metrics,
        CastChannel(tmp_path / "node", [origin.server.url], KEY.address, RUN, "w", 20, metrics, keep=2) as channel,
    ):
        newest = channel.offered()
        assert newest == trainer.channel.latest()
        assert newest is not None
        files = channel.fetch(newest)
        assert visible(files) == visible(trainer.folder(3))
        assert (files / "config.json").is_file(), "it is a whole model"
    assert metric(origin.server, "bytes_sent_total") - sent < 1.1 * trainer.size
    assert not list((tmp_path / "node").glob("000000-*"))


def test_a_base_model_as_somebody_saved_it_is_the_base_of_a_delta(
    origin: Origin, tiny_policy: Policy, tmp_path: Path
) -> None:
    """In float32, in other files: version 0 has the layout of version 1, which is then sent as what changed."""
    saved = tmp_path / "saved"
    tiny_policy.model.save_pretrained(saved, max_shard_size="100KB")
    tiny_policy.tokenizer.save_pretrained(saved)
    assert len(weight_files(saved)) > 2
    channel, publishing = DirectoryChannel(tmp_path / "weights", keep=5), Versions(origin.publisher)
    with channel.publish(0) as staging:
        write_base_version(saved, staging, "bfloat16")
    weights = {name: tensor.bfloat16() for name, tensor in tiny_policy.weights().items()}
    assert equal(dict(read_weights(tmp_path / "weights" / "v000000", "bfloat16")), weights)
    next(iter(weights.values()))[0] += 1
    with channel.publish(1) as staging:
        write_weights(staging, weights)
    for number in range(2):
        publishing.publish(number, tmp_path / "weights" / f"v00000{number}")
    assert [e.kind for e in origin.publisher.entries] == ["full", "delta"]
    assert size_of(origin, 1, "delta") < 0.05 * size_of(origin, 0, "full")
    with client_of(tmp_path / "client", origin.server.url) as client:
        assert visible(client.fetch(1)) == visible(tmp_path / "weights" / "v000001")


def withhold(path: str, data: bytes) -> bytes | None:
    return None if THIRD in path else data


def test_a_relay_that_withholds_one_file_of_eight_is_named_with_the_file(
    origin: Origin, trainer: Trainer, tmp_path: Path
) -> None:
    trainer.step(0)
    with changing_relay(origin.server.url, withhold) as relay:
        with (
            client_of(tmp_path / "client", relay, stall_s=0.5) as client,
            pytest.raises(WaitError, match=rf"version 0: .*, {THIRD} not whole.*Sources: {relay}"),
        ):
            client.fetch(0, wait_s=2.0)
        assert not any(b'["closing"' in m.read_bytes() for m in (tmp_path / "client").glob("*/manifest.jsonl"))
        with client_of(tmp_path / "client", relay, origin.server.url, stall_s=0.5) as client:
            assert visible(client.fetch(0)) == visible(trainer.folder(0))


def test_a_file_of_another_version_is_never_taken_for_this_one_s(
    origin: Origin, trainer: Trainer, tmp_path: Path
) -> None:
    """A relay that has version 1 answers for one file of version 2 with the same file of version 1."""
    trainer.versions = Versions(origin.publisher, full_every=100, deltas=False)
    trainer.step(1)
    old = (trainer.folder(1) / THIRD).read_bytes()
    trainer.step(2)

    def swap(path: str, data: bytes) -> bytes:
        return old[: len(data)] if "-full-" in path and path.startswith("/000002") and THIRD in path else data

    with (
        changing_relay(origin.server.url, swap) as relay,
        client_of(tmp_path / "client", relay, origin.server.url) as client,
    ):
        assert visible(client.fetch(2)) == visible(trainer.folder(2))


def test_a_delta_that_forgets_one_file_of_eight_is_refused(
    origin: Origin, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin's own mistake, signed by it: what comes of it is not the version."""
    trainer.step(0)
    send = versions._send

    def forgetful(package: Package, name: str, *rest: Any) -> None:
        if name != THIRD:
            send(package, name, *rest)

    monkeypatch.setattr(versions, "_send", forgetful)
    trainer.step(1)
    with client_of(tmp_path / "client", origin.server.url) as client:
        with pytest.raises(ShardcastError, match=r"000001-delta.*do not have the root"):
            client.fetch(1, wait_s=20)
        assert client.held().keys() == {0}


def test_tensors_that_move_between_files_end_a_pass_and_not_the_version(
    origin: Origin, trainer: Trainer, tmp_path: Path
) -> None:
    trainer.step(0)
    with client_of(tmp_path / "client", origin.server.url) as client:
        client.fetch(0)
        trainer.step(1)
        trainer.weights["layers.00.bias"] = torch.zeros(VALUES).bfloat16()
        trainer.step(2)
        assert [e.kind for e in origin.publisher.entries] == ["full", "delta", "delta"]
        assert visible(client.fetch(2)) == visible(trainer.folder(2))


def write_chain(tmp_path: Path, count: int = 4) -> tuple[list[Path], list[Path]]:
    trainer = Trainer(tmp_path / "w", versions=None)  # type: ignore[arg-type]
    files, deltas = [], []
    for number in range(count):
        tensor = trainer.weights["layers.00.weight"]
        tensor.view(torch.int16)[number::1000] += 1
        files.append(tmp_path / f"{number}.safetensors")
        save_file({"w": tensor, "other": trainer.weights["layers.01.weight"]}, files[-1])
        if number:
            deltas.append(tmp_path / f"{number}.delta")
            delta.encode(files[-2], files[-1], deltas[-1])
    return files, deltas


def test_deltas_in_a_row_are_one_pass_to_the_last_result(tmp_path: Path) -> None:
    files, deltas = write_chain(tmp_path)
    hashes = delta.apply(files[0], deltas, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == files[-1].read_bytes()
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda d: [d[0], d[2]], r"3\.delta: it does not follow from the delta before it"),
        (lambda d: [d[1], d[0], d[2]], r"it is for a base whose hash|does not follow"),
        (lambda d: d[1:], r"2\.delta: it is for a base whose hash begins with"),
    ],
)
def test_a_chain_with_a_link_missing_or_out_of_order_is_refused(
    tmp_path: Path, chosen: Callable[[list[Path]], list[Path]], said: str
) -> None:
    files, deltas = write_chain(tmp_path)
    with pytest.raises(DeltaError, match=said):
        delta.apply(files[0], chosen(deltas), tmp_path / "out")
    assert not (tmp_path / "out").exists()
