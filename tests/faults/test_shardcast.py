"""Relays that break, stall and lie, disks that fill up: who can reach one honest relay ends with the right bytes."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from shoal.crypto.keys import Key
from shoal.errors import WaitError
from shoal.shardcast.fetch.sources import PER_SOURCE
from shoal.shardcast.format.manifest import Index
from shoal.shardcast.format.records import MIB, Piece, read_head, read_line, signed_head, signed_line
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.rate_limit import Limits
from shoal.wait import wait_until
from tests.support.origin_and_relays import KEY, RUN, Origin, changing_relay, client_of, contents, metric, origin_at
from tests.support.servers.running import free_port
from tests.support.small_disk import run_on_small_disk
from tests.support.until import until

THIEF = Key(b"\x66" * 32)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    with origin_at(tmp_path) as made:
        made.publish(1, mib=9)
        yield made


def flip_a_bit(path: str, data: bytes) -> bytes:
    return bytes([data[0] ^ 4]) + data[1:] if "/files/" in path else data


def cut_off(path: str, data: bytes) -> bytes | None:
    return None if "/files/" in path else data


def shorten(path: str, data: bytes) -> bytes:
    return data[:-1] if "/files/" in path else data


def swap_pieces(path: str, data: bytes) -> bytes:
    return (
        data[MIB:] + data[:MIB] if "/files/" in path and len(data) > MIB else data[::-1] if "/files/" in path else data
    )


def forge_pieces(path: str, data: bytes) -> bytes:
    """Signs every piece again, with another key."""
    if "manifest" not in path:
        return data
    lines = []
    for line in data.splitlines(keepends=True):
        record, _ = read_line(line)
        lines.append(signed_line(record, "00" * 32, THIEF) if isinstance(record, Piece) else line)
    return b"".join(lines)


def claim_other_hashes(path: str, data: bytes) -> bytes:
    """Keeps the signatures and changes what they stand under."""
    return data.replace(b'"hash":"', b'"hash":"00')[:-2] + b"\n" if "manifest" in path else data


def forge_head(path: str, data: bytes) -> bytes:
    if not path.startswith("/head"):
        return data
    head = read_head(data, KEY.address, RUN)
    return signed_head(head.model_copy(update={"sequence": head.sequence + 100, "packages": ()}), THIEF)


def no_line_ends(path: str, data: bytes) -> bytes:
    return b"[" * (70 * MIB) if "manifest" in path else data


def rubbish(path: str, data: bytes) -> bytes:
    return os.urandom(len(data))


@pytest.mark.parametrize(
    ("change", "lies"),
    [
        (flip_a_bit, True),
        (swap_pieces, True),
        (forge_pieces, True),
        (claim_other_hashes, True),
        (forge_head, True),
        (rubbish, True),
        (cut_off, False),
        (shorten, False),
        (no_line_ends, False),
    ],
)
def test_whatever_a_relay_changes_is_never_believed(
    origin: Origin, tmp_path: Path, change: Callable[[str, bytes], bytes | None], lies: bool
) -> None:
    notes: list[str] = []
    with changing_relay(origin.server.url, change) as bad:
        client = client_of(tmp_path / "client", bad)
        client.sources.on_note = notes.append
        with client:
            with pytest.raises(WaitError, match=bad):
                client.fetch(1, wait_s=0.6)
            # Its threads go on after a fetch that was too short to find out.
            until(lambda: client.counts["lies"] if lies else any(bad in note for note in notes))
        assert any(bad in note for note in notes), notes
        assert bool(client.counts["lies"]) == lies
        for index in _indexes(tmp_path / "client"):
            assert not index.closing
        with client_of(tmp_path / "client", bad, origin.server.url) as client:
            assert contents(client.fetch(1)) == contents(origin.versions[1])


def test_another_versions_bytes_are_not_taken_for_this_one(origin: Origin, tmp_path: Path) -> None:
    origin.publish(2, mib=9)
    first, second = (entry.name for entry in origin.publisher.entries)
    old = contents(origin.versions[1])["model.safetensors"]

    def mix(path: str, data: bytes) -> bytes:
        return old[: len(data)] if f"{second}/files/model" in path else data

    with (
        changing_relay(origin.server.url, mix) as bad,
        client_of(tmp_path / "client", bad, origin.server.url) as client,
    ):
        assert contents(client.fetch(2)) == contents(origin.versions[2])
    assert first != second


@contextmanager
def silent_relay(honest: str, after: int) -> Iterator[str]:
    """Passes everything on, but of each answer with pieces only the first bytes; then it says nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(honest.rsplit(":", 1)[1])
    with ExitStack() as stack:
        stack.callback(listener.close)

        def pump(source: socket.socket, target: socket.socket, most: int) -> None:
            with suppress(OSError):
                while data := source.recv(min(65536, most)):
                    target.sendall(data)
                    most -= len(data)
                    if most <= 0:
                        time.sleep(300)
                        return

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    server = socket.create_connection(("127.0.0.1", port))
                    stack.callback(client.close)
                    stack.callback(server.close)
                    threading.Thread(target=pump, args=(client, server, 1 << 40), daemon=True).start()
                    threading.Thread(target=pump, args=(server, client, after), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_stalled_relay_is_dropped_in_the_middle_and_its_pieces_come_from_another(
    origin: Origin, tmp_path: Path
) -> None:
    with silent_relay(origin.server.url, after=600_000) as bad:
        began = time.monotonic()
        with client_of(tmp_path / "client", bad, origin.server.url, stall_s=0.5) as client:
            assert contents(client.fetch(1)) == contents(origin.versions[1])
        assert time.monotonic() - began < 60


RUN_BYTES = 2 * MIB  # of one request: a piece of a version of this size, so that little is under way at each kill
FETCH = """
import sys
from pathlib import Path
from shoal.shardcast.fetch import downloader
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
downloader.RUN_BYTES = int(sys.argv[4])
with Puller(Store(Path(sys.argv[1])), [sys.argv[3]], sys.argv[2], stall_s=20) as puller:
    print(puller.fetch(1, wait_s=120), flush=True)
"""


def test_a_client_killed_twenty_times_ends_with_the_right_bytes_and_fetches_little_twice(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        made = origin.publish(1, mib=200)
        size = sum(len(data) for data in contents(made).values())

        def slow(path: str, data: bytes) -> bytes:
            if "/files/" in path:
                time.sleep(0.2)
            return data

        with changing_relay(origin.server.url, slow) as relay:
            command = [sys.executable, "-c", FETCH, str(tmp_path / "client"), KEY.address, relay, str(RUN_BYTES)]
            rng = random.Random(5)
            seen = [0]

            def grew() -> bool:
                return _size(tmp_path / "client") > seen[-1]

            for _ in range(20):
                with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                    try:
                        until(grew)  # however long a busy machine takes to start it
                        time.sleep(rng.random() * 0.2)
                    finally:
                        process.send_signal(signal.SIGKILL)
                seen.append(_size(tmp_path / "client"))
            assert seen == sorted(seen)
            assert seen[-1] < size, "it was never killed after its end"
            done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
        assert contents(Path(done.stdout.split()[-1])) == contents(made)
        in_flight = PER_SOURCE * RUN_BYTES
        assert metric(origin.server, "bytes_sent_total") <= size + 20 * in_flight


PUBLISH = """
import sys, time
from pathlib import Path
from shoal.crypto.keys import Key
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.serve.server import Server, serving
from shoal.shardcast.format.store import Store
store = Store(Path(sys.argv[1]))
with Publisher(store, Key(bytes.fromhex("11" * 32)), "test") as publisher:
    with serving(Server(store, port=int(sys.argv[2]))):
        with publisher.publish(1) as package, package.file("model.safetensors") as file:
            for i in range(int(sys.argv[3])):
                file.write(sys.argv[4].encode() * (1 << 20))
                print(i, flush=True)
                time.sleep(float(sys.argv[5]))
        time.sleep(60)
"""


def test_an_origin_killed_while_it_publishes_leaves_nobody_with_half_a_version(tmp_path: Path) -> None:
    port = free_port()

    def start(sign: str, pause: float) -> subprocess.Popen[str]:
        arguments = [str(tmp_path / "origin"), str(port), "8", sign, str(pause)]
        return subprocess.Popen([sys.executable, "-c", PUBLISH, *arguments], stdout=subprocess.PIPE, text=True)

    first = start("a", 600.0)  # it is killed long before its second piece
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    with client_of(tmp_path / "client", f"http://127.0.0.1:{port}") as client:
        found: list[Path] = []
        thread = threading.Thread(target=lambda: found.append(client.fetch(1, wait_s=120)))
        thread.start()
        until(lambda: any(job.done for job in client.jobs.values()))
        first.kill()
        first.wait()
        first.stdout.close()
        second = start("b", 0.0)
        try:
            thread.join(120)
            assert (found[0] / "model.safetensors").read_bytes() == b"b" * (8 * MIB)
        finally:
            second.kill()
            second.communicate()


def test_a_killed_relay_is_done_without_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    with origin_at(tmp_path) as origin:
        command = [sys.executable, "-m", "shoal", "relay", "--from", origin.server.url, "--origin", KEY.address]
        command += ["--store", str(tmp_path / "relay"), "--port", "0"]

        def start() -> tuple[subprocess.Popen[str], str]:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            assert process.stdout is not None
            return process, process.stdout.readline().split(" at ")[1].split(",")[0]

        relay, url = start()
        with client_of(tmp_path / "client", url, origin.server.url) as client:
            with origin.publisher.publish(1) as package, package.file("model.safetensors") as file:
                for i in range(16):
                    file.write(bytes([i]) * MIB)
                    if i == 8:
                        relay.kill()
                        relay.communicate()
                    time.sleep(0.02)
            files = client.fetch(1)
            assert (files / "model.safetensors").read_bytes() == b"".join(bytes([i]) * MIB for i in range(16))
        relay, url = start()
        try:
            with client_of(tmp_path / "other", url) as client:
                assert contents(client.fetch(1)) == contents(files)
        finally:
            relay.kill()
            relay.communicate()


def test_a_follower_goes_back_when_its_version_is_taken_back(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(1, mib=0.1)
        command = [sys.executable, "-m", "shoal", "fetch", origin.server.url, "--to", str(tmp_path / "client")]
        command += ["--origin", KEY.address, "--follow"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None

            def fetched() -> dict[str, bytes]:
                assert client.stdout is not None
                found = contents(Path(client.stdout.readline().strip()))
                assert contents((tmp_path / "client" / "latest").resolve()) == found
                return found

            try:
                assert fetched() == contents(origin.versions[1])
                second = contents(origin.publish(2, mib=0.1))
                assert fetched() == second
                origin.publisher.retract([2])
                assert fetched() == contents(origin.versions[1])
                third = contents(origin.publish(2, mib=0.1))
                assert fetched() == third != second
            finally:
                client.kill()


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from shoal.errors import StorageError
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.format.store import Store
mount = Path(sys.argv[1])
(mount / "filler").write_bytes(bytes(6 << 20))
store = Store(mount / "store")
with Puller(store, [sys.argv[2]], sys.argv[3]) as puller:
    try:
        puller.fetch(1)
    except StorageError as error:
        print(error)
    (mount / "filler").unlink()
    print(len((puller.fetch(1) / "model.safetensors").read_bytes()))
    print(puller.counts["bytes_fetched"])
"""


def test_a_full_disk_is_said_and_what_is_there_is_kept(origin: Origin, tmp_path: Path) -> None:
    said = run_on_small_disk(tmp_path / "disk", 12 << 10, ON_A_SMALL_DISK, origin.server.url, KEY.address).splitlines()
    size = len(contents(origin.versions[1])["model.safetensors"])
    assert "the disk is full" in said[0]
    assert "nothing was lost" in said[0]
    assert int(said[1]) == size
    assert metric(origin.server, "bytes_sent_total") <= size + 100 + 2 * 8 * MIB


def test_five_hundred_idle_connections_starve_nobody(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin, ExitStack() as stack:
        made = origin.publish(1, mib=2)
        for i in range(500):
            sock = stack.enter_context(socket.create_connection((origin.server.host, origin.server.port), timeout=10))
            if i % 2:
                sock.sendall(b"GET /head.json HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        began = time.monotonic()
        with client_of(tmp_path / "client", origin.server.url) as client:
            assert contents(client.fetch(1)) == contents(made)
        assert time.monotonic() - began < 30


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    with (
        origin_at(tmp_path, Limits(idle_s=0.5)) as origin,
        socket.create_connection((origin.server.host, origin.server.port), timeout=10) as sock,
    ):
        sock.sendall(b"GET /head.json HTTP/1.1\r\nHost")
        assert sock.recv(1000) == b""


def test_a_reader_of_a_byte_a_second_is_cut_off_and_others_do_not_notice(tmp_path: Path) -> None:
    limits = Limits(grace_s=0.3, min_bytes_per_s=64 * MIB)
    with origin_at(tmp_path, limits) as origin, ExitStack() as stack:
        made = origin.publish(1, mib=24)
        name = origin.publisher.entries[0].name
        request = f"GET /{name}/files/model.safetensors HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection((origin.server.host, origin.server.port), timeout=10))
            sock.sendall(request)
            assert len(sock.recv(1)) == 1
        with client_of(tmp_path / "client", origin.server.url) as client:
            assert contents(client.fetch(1)) == contents(made)
        wait_until(lambda: metric(origin.server, "cut_off_total") >= 20, 60, "they were not cut off", pause_s=0.05)


def _size(store: Path) -> int:
    """Bytes whose place in a version is known to be right."""
    return sum(index.size for index in _indexes(store))


def _indexes(store: Path) -> list[Index]:
    found = []
    for name in Store(store).packages():
        index = Index(store / name)
        index.refresh()
        found.append(index)
    return found
