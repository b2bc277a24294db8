"""A role's channel over the network says what the trainer's directory says, through a relay, whatever is taken back."""

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shoal.client.weight_source import CastChannel
from shoal.config_io import load_config
from shoal.crypto.tls import pinned_context
from shoal.errors import WeightsError
from shoal.protocol.stores import Version
from shoal.protocol.version_directory import MANIFEST, DirectoryChannel
from shoal.roles.origin import start_origin
from shoal.rundir import RunDir
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.directory_follower import Follower
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.server import Server, serving
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import read_status
from tests.support.origin_and_relays import KEY, RUN, contents, relay_at
from tests.support.servers.running import free_port
from tests.support.until import until

CONFIG = Path(__file__).parents[2] / "configs" / "laptop.toml"


class World:
    """The trainer's directory, an origin that follows it and can be stopped, a relay, and one role's channel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trainer = DirectoryChannel(path / "weights", keep=3)
        self.publish(0, b"base")
        self._origin = ExitStack()
        self.port = 0
        self.start_origin()

    def start_origin(self) -> None:
        store = Store(self.path / "origin")
        server = Server(store, port=self.port)
        publisher = self._origin.enter_context(Publisher(store, KEY, RUN))
        follower = Follower(self.path / "weights", Versions(publisher))
        stopped = threading.Event()

        def follow() -> None:
            while not stopped.wait(0.01):
                follower.sync()

        thread = threading.Thread(target=follow)
        thread.start()
        self._origin.callback(thread.join)
        self._origin.callback(stopped.set)
        self._origin.enter_context(serving(server))
        self.port = server.port

    def stop_origin(self) -> None:
        self._origin.close()

    def publish(self, number: int, data: bytes) -> Version:
        with self.trainer.publish(number) as staging:
            (staging / "model.safetensors").write_bytes(data * 1000)
            (staging / "config.json").write_text("{}")
        version = self.trainer.version(number)
        assert version is not None
        return version

    @contextmanager
    def role(self, *relays: str, name: str = "worker-0", wait_s: float = 20.0) -> Iterator[CastChannel]:
        with (
            MetricsWriter(self.path / f"{name}.jsonl") as metrics,
            CastChannel(self.path / name, relays, KEY.address, RUN, name, wait_s, metrics) as channel,
        ):
            yield channel


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.stop_origin()


@pytest.fixture
def channel(world: World) -> Iterator[CastChannel]:
    with relay_at(world.path / "relay", f"http://127.0.0.1:{world.port}") as relay, world.role(relay.url) as channel:
        yield channel


def test_the_role_has_the_versions_of_the_trainer_with_their_roots_and_bytes(
    world: World, channel: CastChannel
) -> None:
    base = channel.version(0)
    assert base == world.trainer.version(0)
    assert base is not None
    there = contents(world.trainer.fetch(base))
    del there[MANIFEST]
    assert contents(channel.fetch(base)) == there
    for number in (1, 2):
        version = world.publish(number, b"version %d" % number)
        until(lambda version=version: channel.latest() == version)  # type: ignore[misc]
        assert channel.version(number) == version
        assert (channel.fetch(version) / "model.safetensors").read_bytes() == b"version %d" % number * 1000


def test_a_version_that_is_taken_back_is_the_newest_no_more_and_its_number_can_be_another(
    world: World, channel: CastChannel
) -> None:
    world.publish(1, b"one")
    lost = world.publish(2, b"two")
    until(lambda: channel.latest() == lost)
    world.trainer.retract(1)
    until(lambda: channel.latest() == world.trainer.version(1))
    assert channel.was_retracted(lost)
    with pytest.raises(WeightsError, match=r"version 2 .*it is no longer offered"):
        channel.fetch(lost)
    again = world.publish(2, b"another")
    until(lambda: channel.latest() == again)
    assert channel.version(2) == again != lost
    with pytest.raises(WeightsError, match="is offered under its number"):
        channel.fetch(lost)
    assert not channel.was_retracted(again)


def test_what_was_taken_back_while_the_origin_was_down_is_known_when_it_is_up(
    world: World, channel: CastChannel
) -> None:
    lost = world.publish(1, b"one")
    until(lambda: channel.latest() == lost)
    world.stop_origin()
    world.trainer.retract(0)
    again = world.publish(1, b"one, trained otherwise")
    assert channel.latest() == lost, "nobody has told"
    world.start_origin()
    until(lambda: channel.latest() == again)
    assert channel.was_retracted(lost)


def test_a_version_that_the_role_has_not_heard_of_yet_is_waited_for_a_moment(
    world: World, channel: CastChannel
) -> None:
    world.publish(1, b"one")
    late = threading.Timer(0.3, lambda: world.publish(2, b"two"))
    late.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.client.weight_source.HEARSAY_S", 60.0)  # a busy machine publishes late
        found = channel.version(2)
    late.join()
    assert found == world.trainer.version(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.client.weight_source.HEARSAY_S", 0.2)
        began = time.monotonic()
        assert channel.version(9) is None
        assert time.monotonic() - began < 10


def test_a_role_without_a_relay_that_answers_says_so_in_time(world: World) -> None:
    with world.role("http://127.0.0.1:1", wait_s=0.5) as channel:
        assert channel.latest() is None
        assert channel.version(0) is None
        base = world.trainer.version(0)
        assert base is not None
        with pytest.raises(WeightsError, match="it is no longer offered"):
            channel.fetch(base)


def test_a_version_that_nobody_offers_any_more_is_an_error_at_once(world: World, channel: CastChannel) -> None:
    old = world.publish(1, b"1")
    until(lambda: channel.latest() == old)
    for number in range(2, 9):
        version = world.publish(number, b"%d" % number)
        until(lambda version=version: channel.latest() == version)  # type: ignore[misc]
    with pytest.raises(WeightsError, match="no longer offered"):
        channel.fetch(old)
    assert channel.version(0) is not None, "the base model stays"


def test_an_origin_whose_follower_dies_ends_with_what_killed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Follower) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(Follower, "sync", fail)
    run = RunDir(tmp_path, load_config(CONFIG, []))
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "weights").mkdir()
    with pytest.raises(KeyError, match="a defect"):
        start_origin(run, 0)
    assert "a defect" in (tmp_path / "status" / "origin.json").read_text()


def test_an_origin_that_is_told_to_stop_ends_well(tmp_path: Path) -> None:
    run = RunDir(tmp_path, load_config(CONFIG, []))
    (tmp_path / "weights").mkdir()

    def stop_once_it_serves() -> None:
        """Before that nothing listens for the signal, which would end the tests."""
        until(lambda: any(status.state == "working" for status in read_status(tmp_path)))
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Thread(target=stop_once_it_serves)
    stop.start()
    start_origin(run, 0)
    stop.join()
    (status,) = read_status(tmp_path)
    assert (status.role, status.state) == ("origin", "done")


def test_an_origin_of_a_run_listens_where_it_is_told_to_and_vouches_for_its_certificate(tmp_path: Path) -> None:
    run = RunDir(tmp_path, load_config(CONFIG, []))
    (tmp_path / "weights").mkdir()
    port = free_port()
    found: list[object] = []

    def look() -> None:
        try:
            until(lambda: any(status.state == "working" for status in read_status(tmp_path)))
            found.extend(status.doing for status in read_status(tmp_path))
            context = pinned_context(run.origin_key.address)
            connection = http.client.HTTPSConnection("127.0.0.2", port, context=context, timeout=20)
            connection.request("GET", "/metrics")
            found.append(connection.getresponse().status)
            connection.close()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=look)
    visitor.start()
    start_origin(run, port, host="127.0.0.2", tls=True)
    visitor.join()
    assert f"at https://127.0.0.2:{port}," in str(found[0])
    assert found[1] == 200
