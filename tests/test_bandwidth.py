"""A limited line: what passes is never more than was agreed, over every path and in all threads together."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.bandwidth import RECEIVED, SENT, TokenBucket, limit_line, socket_options, to_send
from shoal.errors import ConfigError
from shoal.limits import NO_LIMITS, MachineLimits, parse_size, show_size
from tests.support.coordinator_in_process import World, key_of
from tests.support.origin_and_relays import client_of, contents, origin_at

WITHIN = 1.05  # of the limit


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def line() -> Iterator[None]:
    yield
    limit_line(None, None)


@given(st.floats(1e3, 1e9), st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0.0, 5.0)), min_size=1, max_size=30))
def test_no_more_passes_than_the_limit_however_it_is_asked_for(rate: float, takes: list[tuple[int, float]]) -> None:
    """After pauses too: what was not used before is not made up for."""
    passed = Time()
    bucket = TokenBucket(rate, passed.clock, passed.sleep)
    for count, pause in takes:
        began = passed.now
        bucket.take(count)
        assert passed.now - began >= count / rate * (1 - 1e-6) - 1e-6
        passed.sleep(pause)


def test_threads_share_one_limit() -> None:
    bucket = TokenBucket(1e6)
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: [bucket.take(10_000) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 400_000 / (time.monotonic() - began) <= WITHIN * 1e6


def test_without_a_limit_nothing_waits_and_no_socket_is_changed() -> None:
    assert RECEIVED.take(1 << 40) == 0.0
    assert socket_options() == []
    assert to_send(b"x" * 700_000) == b"x" * 700_000


def test_versions_come_from_a_relay_no_faster_than_allowed(tmp_path: Path, line: None) -> None:
    with origin_at(tmp_path) as origin:
        folder = origin.publish(0, mib=3.0)
        size = sum(len(data) for data in contents(folder).values())
        limit_line(2e6, None)
        before, began = RECEIVED.total, time.monotonic()
        with client_of(tmp_path / "client", origin.server.url) as client:
            assert contents(client.fetch(0)) == contents(folder)
        seconds = time.monotonic() - began
        assert size <= RECEIVED.total - before <= 1.05 * size, "every byte is counted"
        assert size / seconds <= WITHIN * 2e6


def test_a_file_is_sent_to_the_coordinator_no_faster_than_allowed_and_arrives_whole(
    small_world: World, line: None
) -> None:
    small_world.announce()
    lease = small_world.take("a")
    data = b"x" * small_world.coordinator.terms.max_upload
    rate = len(data) / 1.0
    limit_line(None, rate)
    began = time.monotonic()
    with small_world.link(key_of("a")) as link:
        link.put_file(f"/v1/files/{lease.step}/{lease.submission}?signal=0", data)
    assert len(data) / (time.monotonic() - began) <= WITHIN * rate
    assert small_world.validator.waiting(0, 1)[0].submission == lease.submission


def test_the_system_takes_in_little_more_than_is_read(line: None) -> None:
    """A reader that sleeps does not slow a sender whose bytes the system buffers by the megabyte."""
    limit_line(200_000.0, None)
    server = socket.create_server(("127.0.0.1", 0))
    reader = socket.create_connection(server.getsockname())
    for option in socket_options():
        reader.setsockopt(*option)
    sender, _ = server.accept()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    sender.settimeout(0.3)
    sent = 0
    with suppress(TimeoutError):
        while sent < 10_000_000:
            sent += sender.send(b"x" * 65536)
    assert sent < 1_000_000
    for each in (server, reader, sender):
        each.close()


def test_bytes_that_are_sent_pass_the_bucket_before_the_line(line: None) -> None:
    limit_line(None, 1e6)
    before = SENT.total
    pieces = iter(to_send(b"x" * 300_000))
    assert next(pieces) == b"x" * 100_000
    assert SENT.total - before == 100_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 * 10**9),
        ("1.5 GiB", 3 << 29),
        ("500m", 5 * 10**8),
        ("20Mbit", 2_500_000),
        ("4096", 4096),
        ("3KB", 3000),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "-1G", "G", "8 gigs", "1e9", "nan", "inf", "8G8", "1" * 40 + "T"])
def test_what_is_not_a_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--memory .*write it as 8G"):
        parse_size(text, "--memory")


@pytest.mark.parametrize(
    ("name", "value"), [("threads", 0), ("memory", 1000), ("disk", 5), ("upload", 16_000), ("gpu_memory", 10**6)]
)
def test_a_limit_that_no_worker_can_keep_is_refused_with_the_smallest_one(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} .*no worker can keep that; give .* or more"):
        MachineLimits(**{name: value})


def test_limits_become_flags_of_the_worker_and_no_others() -> None:
    assert NO_LIMITS.flags() == []
    given = MachineLimits(threads=2, memory=8 * 10**9, upload=500_000)
    assert given.flags() == ["--threads", "2", "--memory", "8000000000", "--upload", "500000"]
    assert given.shown() == {"threads": "2", "memory": "8 GB", "upload": "500 kB/s"}
    assert show_size(12) == "12 bytes"
