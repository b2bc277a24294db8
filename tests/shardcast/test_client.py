"""Origin, relays and clients, over real sockets."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from shoal.errors import ShardcastError, StorageError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.fetch.http import distance
from shoal.shardcast.format.manifest import Index, append_line, verified_lines
from shoal.shardcast.format.records import MIB
from shoal.shardcast.format.store import HEAD, Store
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.serve.rate_limit import Limits
from shoal.shardcast.serve.server import Server, serving
from shoal.wait import wait_until
from tests.support.origin_and_relays import (
    KEY,
    RUN,
    changing_relay,
    client_of,
    contents,
    fails_to_fetch,
    metric,
    origin_at,
    publish_directory,
    relay_at,
    write_version,
)
from tests.support.until import until


def test_a_version_arrives_through_a_relay_byte_for_byte(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        made = origin.publish(1)
        with (
            relay_at(tmp_path / "relay", origin.server.url) as relay,
            client_of(tmp_path / "client", relay.url) as client,
        ):
            files = client.fetch()
            assert contents(files) == contents(made)
            assert client.held()[1] == origin.publisher.entries[0].root


def test_the_first_piece_arrives_while_the_last_is_not_yet_written(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path) as origin,
        relay_at(tmp_path / "relay", origin.server.url) as relay,
        client_of(tmp_path / "client", relay.url) as client,
    ):
        with origin.publisher.publish(1) as package, package.file("model.safetensors") as file:
            began = time.monotonic()
            file.write(b"a" * MIB)
            fetched = threading.Thread(target=client.fetch, args=(1,))
            fetched.start()
            while not any(job.done for job in client.jobs.values()):
                assert time.monotonic() - began < 30
                time.sleep(0.002)
            file.write(b"b" * MIB)
        fetched.join()
        assert (client.fetch(1) / "model.safetensors").read_bytes() == b"a" * MIB + b"b" * MIB


def test_the_origin_sends_each_byte_once_however_many_clients_there_are(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, relay_at(tmp_path / "relay", origin.server.url) as relay:
        clients = [client_of(tmp_path / f"client-{i}", relay.url) for i in range(4)]
        made = origin.publish(1)
        size = sum(len(data) for data in contents(made).values())
        for client in clients:
            with client:
                client.fetch(1)
        assert metric(origin.server, "bytes_sent_total") == size
        assert metric(relay, "bytes_sent_total") == 4 * size


def test_one_client_uses_several_relays_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Forty requests rather than two, of which one relay may get both.
    monkeypatch.setattr("shoal.shardcast.fetch.downloader.RUN_BYTES", MIB)
    with origin_at(tmp_path) as origin:
        made = origin.publish(1, mib=40)
        with (
            relay_at(tmp_path / "a", origin.server.url) as first,
            relay_at(tmp_path / "b", origin.server.url) as second,
            client_of(tmp_path / "client", first.url, second.url) as client,
        ):
            for relay in (first, second):
                while not metric(relay, "packages_fetched_total"):
                    time.sleep(0.02)
            assert contents(client.fetch()) == contents(made)
            assert metric(first, "bytes_sent_total") > 0
            assert metric(second, "bytes_sent_total") > 0


def test_a_stopped_client_goes_on_where_it_was(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        made = origin.publish(1, mib=6)
        name = origin.publisher.entries[0].name
        cut = {"left": 3 * MIB}

        def stop_after_three_pieces(path: str, data: bytes) -> bytes | None:
            if "/files/" in path:
                cut["left"] -= len(data)
                if cut["left"] < 0:
                    return None
            return data

        with (
            changing_relay(origin.server.url, stop_after_three_pieces) as relay,
            client_of(tmp_path / "client", relay) as client,
        ):
            fails_to_fetch(client, 1, f"version 1: nothing came.*{relay}")
            until(lambda: any(job.done for job in client.jobs.values()))
        index = Index(tmp_path / "client" / name)
        index.refresh()
        assert index.pieces
        sent: list[int] = []

        def count(path: str, data: bytes) -> bytes:
            if "/files/" in path:
                sent.append(len(data))
            return data

        with (
            changing_relay(origin.server.url, count) as relay,
            client_of(tmp_path / "client", relay) as client,
        ):
            assert contents(client.fetch(1)) == contents(made)
        assert sum(sent) == sum(len(data) for data in contents(made).values()) - index.size


def test_a_piece_that_was_damaged_on_our_disk_is_fetched_again(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        made = origin.publish(1)
        with client_of(tmp_path / "client", origin.server.url) as client:
            files = client.fetch()
        with (files / "model.safetensors").open("r+b") as file:
            file.seek(MIB + 5)
            file.write(b"?!")
        before = metric(origin.server, "bytes_sent_total")
        with client_of(tmp_path / "client", origin.server.url) as client:
            assert contents(client.fetch()) == contents(made)
        assert metric(origin.server, "bytes_sent_total") > before


def test_a_retracted_version_is_dropped_for_the_one_that_replaces_it(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path) as origin,
        relay_at(tmp_path / "relay", origin.server.url) as relay,
        client_of(tmp_path / "client", relay.url) as client,
    ):
        origin.publish(1)
        old = client.fetch(1)
        origin.publisher.retract([1])
        new = origin.publish(1)
        sequence = origin.publisher._sequence
        while client.head is None or client.head.sequence < sequence:
            time.sleep(0.01)
        files = client.fetch(1)
        assert contents(files) == contents(new)
        assert not old.exists()


def keeps(store: Path, versions: list[int]) -> bool:
    return [int(name[:6]) for name in Store(store).packages()] == versions


def test_the_base_and_the_last_five_versions_stay_and_a_client_keeps_the_last_four(tmp_path: Path) -> None:
    limits = Limits(lease_s=0.05)
    with (
        origin_at(tmp_path, limits) as origin,
        relay_at(tmp_path / "relay", origin.server.url, limits=limits) as relay,
        client_of(tmp_path / "client", relay.url) as client,
    ):
        for number in range(9):
            origin.publish(number, mib=0.1)
            client.fetch(number)
            time.sleep(0.2)  # until nobody has asked for the one before for a while
        for store, kept in (("origin", [0, 4, 5, 6, 7, 8]), ("relay", [0, 4, 5, 6, 7, 8]), ("client", [5, 6, 7, 8])):
            wait_until(partial(keeps, tmp_path / store, kept), 60, f"{store}: does not keep {kept}", pause_s=0.05)


def test_a_version_in_use_is_not_pulled_away(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1, mib=0.1)
        name = origin.publisher.entries[0].name
        with origin.store.hold(name) as folder:
            for number in range(2, 8):
                origin.publish(number, mib=0.1)
            assert (folder / "files" / "config.json").is_file()
        origin.publish(8, mib=0.1)
        assert not folder.exists()


def test_a_killed_publishers_half_version_is_not_offered_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "origin")
    with Publisher(store, KEY, RUN) as publisher:
        publish_directory(publisher, 1, write_version(tmp_path / "v1", 0.1))
        context = publisher.publish(2)
        with context.__enter__().file("model.safetensors") as file:
            file.write(b"x" * MIB)
        half = publisher.entries[-1].name
        assert half in store.packages()
    with Publisher(store, KEY, RUN) as publisher:
        assert [entry.number for entry in publisher.entries] == [1]
        assert half not in store.packages()


def test_an_older_head_is_refused_with_its_source_named(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1, mib=0.1)
        old = (origin.store.path / "head.json").read_bytes()
        origin.publish(2, mib=0.1)

        def roll_back(path: str, data: bytes) -> bytes:
            return old if path.startswith("/head.json") else data

        with changing_relay(origin.server.url, roll_back) as relay:
            with client_of(tmp_path / "client", origin.server.url) as client:
                client.fetch(2)
            with client_of(tmp_path / "client", relay) as client:
                wait_until(lambda: client.counts["rollbacks_refused"], 30, "the old head was not noticed", pause_s=0.01)
                assert client.latest() == 2
                assert "older than" in client.sources[0].said


def test_another_runs_head_is_refused(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1, mib=0.1)
        client = Puller(Store(tmp_path / "client"), [origin.server.url], KEY.address, "other", stall_s=1)
        with client:
            fails_to_fetch(client, None, r"run 'test', wanted 'other'")


def test_two_writers_of_one_store_are_told(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, pytest.raises(ShardcastError, match=r"^no source"):
        Puller(origin.store, [], KEY.address)
    with (
        origin_at(tmp_path / "b") as origin,
        serving(Server(origin.store)),
        pytest.raises(Exception, match="another process writes it"),
    ):
        Publisher(origin.store, KEY, RUN)


def test_a_directory_with_another_origins_head_is_refused(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1, mib=0.1)
    with (
        pytest.raises(ShardcastError, match="another run or origin"),
        Puller(Store(tmp_path / "origin"), ["http://127.0.0.1:1"], "0x" + "12" * 20),
    ):
        pass


def test_a_version_that_newer_ones_have_pushed_out_is_an_error_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        origin = stack.enter_context(origin_at(tmp_path))
        for number in range(1, 8):  # before the client comes: while 7 is being written, the head still lists 2
            origin.publish(number, mib=0.1)
        client = stack.enter_context(client_of(tmp_path / "client", origin.server.url))
        client.fetch(7)
        began = time.monotonic()
        with pytest.raises(ShardcastError, match=r"version 1 is not offered; \[3, 4, 5, 6, 7\] are"):
            client.fetch(1, wait_s=60)
        later = threading.Timer(0.3, lambda: origin.publish(9, mib=0.1))
        later.start()
        with pytest.raises(ShardcastError, match="version 8 is not offered"):
            client.fetch(8, wait_s=60)
        later.join()
        assert time.monotonic() - began < 30


def test_a_fetch_that_names_its_content_ends_when_that_is_taken_back(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, client_of(tmp_path / "client", origin.server.url) as client:
        origin.publish(1, mib=0.1)
        client.fetch(1)
        began = time.monotonic()
        with pytest.raises(ShardcastError, match=r"version 1 with root abab.* is no longer offered"):
            client.fetch(1, wait_s=60, root="ab" * 32)
        assert time.monotonic() - began < 30


def test_old_content_of_a_number_that_somebody_still_holds_is_not_handed_out_for_the_new(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path) as origin,
        client_of(tmp_path / "client", origin.server.url) as client,
        ExitStack() as held,
    ):
        for _ in range(6):
            new = origin.publish(1, mib=0.1)
            (root,) = (entry.root for entry in origin.publisher.entries)
            while client.head is None or root not in [entry.root for entry in client.head.packages]:
                time.sleep(0.01)
            for _ in range(2):
                files = client.fetch(1)
                assert contents(files) == contents(new)
            held.enter_context(client.store.hold(files.parent.name))
            origin.publisher.retract([1])


def test_a_package_that_is_being_hashed_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(folder: Path, origin: str) -> object:
        assert not folder.name.startswith("000001") or go_on.wait(200)
        return verified_lines(folder, origin)

    with origin_at(tmp_path) as origin:
        made = origin.publish(1, mib=0.1)
        half = tmp_path / "relay" / origin.publisher.entries[0].name
        half.mkdir(parents=True)
        lines = (origin.store.path / half.name / "manifest.jsonl").read_bytes().splitlines(keepends=True)
        (half / "manifest.jsonl").write_bytes(lines[0])
        monkeypatch.setattr("shoal.shardcast.fetch.package.verified_lines", slow)
        try:
            with Puller(Store(tmp_path / "relay"), [origin.server.url], KEY.address, RUN, mirror=True) as relay:
                origin.publish(2, mib=0.1)
                assert relay.latest(60, after=1) == 2
                relay.fetch(2, wait_s=60)
                assert [job.resumed for job in relay.jobs.values()] == [False, True]
                go_on.set()
                assert contents(relay.fetch(1, wait_s=60)) == contents(made)
        finally:
            go_on.set()


def test_a_head_that_the_disk_refuses_is_taken_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.shardcast.fetch.downloader.REST_S", 0.05)
    with origin_at(tmp_path) as origin:
        made = origin.publish(1, mib=0.1)
        client = client_of(tmp_path / "client", origin.server.url)
        write, refusals = client.store.write_head, iter(range(3))

        def refuse(data: bytes) -> None:
            if next(refusals, None) is not None:
                raise StorageError("the disk is full")
            write(data)

        monkeypatch.setattr(client.store, "write_head", refuse)
        with client:
            assert contents(client.fetch(1)) == contents(made)


def test_a_package_whose_end_the_disk_refuses_is_ended_by_the_next_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([1])

    def refuse(folder: Path, line: bytes) -> None:
        if line.startswith(b'["closing"') and next(refusals, None):
            raise StorageError("the disk is full")
        append_line(folder, line)

    monkeypatch.setattr("shoal.shardcast.fetch.package.append_line", refuse)
    with origin_at(tmp_path) as origin, client_of(tmp_path / "client", origin.server.url) as client:
        made = origin.publish(1, mib=0.1)
        with pytest.raises(StorageError, match="the disk is full"):
            client.fetch(1)
        assert contents(client.fetch(1)) == contents(made)


def test_no_connection_outlives_its_puller(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1)
        with client_of(tmp_path / "client", origin.server.url) as client:
            client.fetch()
            until(lambda: client.sources[0].idle)  # its last transfer is put away after the version is whole
            kept = list(client.sources[0].idle)
            assert kept
        assert [connection._sock for connection in kept] == [None] * len(kept)


def test_a_source_that_comes_later_is_taken_as_well(tmp_path: Path) -> None:
    with origin_at(tmp_path / "o") as origin:
        folder = origin.publish(1)
        with Puller(Store(tmp_path / "client"), ["http://127.0.0.1:9"], KEY.address, RUN) as puller:
            assert puller.latest(0.2) is None
            puller.also_from([origin.server.url, f"{origin.server.url}/"])
            assert contents(puller.fetch(1)) == contents(folder)
            assert len(puller.sources) == 2


def test_sources_that_come_under_ever_new_names_take_no_more_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.shardcast.fetch.sources.MAX_SOURCES", 4)
    with origin_at(tmp_path / "o") as origin:
        folder = origin.publish(1)
        with Puller(Store(tmp_path / "client"), [origin.server.url], KEY.address, RUN) as puller:
            assert puller.latest(60) == 1
            for number in range(30):
                puller.also_from([origin.server.url, *(f"http://127.0.0.1:9/{number}-{n}" for n in range(9))])
            assert len(puller.sources) == 4
            assert puller.sources[0].url == origin.server.url
            deadline = time.monotonic() + 60
            while sum(thread.is_alive() for thread in puller._threads) > 20 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert sum(thread.is_alive() for thread in puller._threads) <= 20
            assert contents(puller.fetch(1)) == contents(folder)


def test_a_source_that_lies_nearer_than_it_may_is_connected_to_and_not_asked(tmp_path: Path) -> None:
    with origin_at(tmp_path / "o") as origin:
        origin.publish(1)
        with Puller(Store(tmp_path / "client"), [origin.server.url], KEY.address, RUN, nearest=2) as puller:
            until(lambda: "inside this network; not asked" in puller.sources.said())
            assert puller.latest(0.5) is None
        assert origin.server.counts["requests"] == 0


@pytest.mark.parametrize(
    ("host", "far"),
    [
        ("127.0.0.1", 0),
        ("::1", 0),
        ("0.0.0.0", 0),
        ("169.254.169.254", 1),
        ("fe80::1%eth0", 1),
        ("192.168.1.1", 2),
        ("::ffff:10.0.0.1", 2),
        ("100.64.0.1", 2),
        ("fd00::1", 2),
        ("1.1.1.1", 3),
        ("2606:4700::1", 3),
        ("a.name", 0),
    ],
)
def test_how_far_an_address_lies(host: str, far: int) -> None:
    assert distance(host) == far


def test_a_source_that_comes_while_a_package_is_awaited_brings_it(tmp_path: Path) -> None:
    with origin_at(tmp_path / "o") as origin:
        folder = origin.publish(1)
        empty = Store(tmp_path / "empty")
        empty.path.mkdir(exist_ok=True)
        (empty.path / HEAD).write_bytes((origin.store.path / HEAD).read_bytes())
        with (
            serving(Server(empty)) as withholding,
            Puller(Store(tmp_path / "client"), [withholding.url], KEY.address, RUN) as puller,
            ThreadPoolExecutor() as pool,
        ):
            fetching = pool.submit(puller.fetch, 1, 20)
            deadline = time.monotonic() + 20
            while not any(job.asked for job in puller.jobs.values()) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not fetching.done()
            puller.also_from([origin.server.url])
            assert contents(fetching.result(20)) == contents(folder)
