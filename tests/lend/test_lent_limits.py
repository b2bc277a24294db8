"""Line and disk of a lent machine, from the supervisor's settings to the bytes that move: held within 5 %."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shoal.bandwidth import RECEIVED, SENT, limit_line
from shoal.errors import ConfigError
from shoal.files import tree_bytes
from shoal.lend import supervisor as module
from shoal.lend.state_files import LendFolder, Settings
from shoal.lend.supervisor import Supervisor
from shoal.limits import MachineLimits
from shoal.roles.session import _room_for_versions
from tests.support.command import shoal
from tests.support.coordinator_in_process import ORIGIN, World
from tests.support.disk_watch import DiskWatch
from tests.support.lent_mover import FETCHED, MOVED, OTHER_BYTES, VERSIONS
from tests.support.origin_and_relays import origin_at
from tests.support.until import until

MOVER = Path(__file__).parents[1] / "support" / "lent_mover.py"
DISK, UPLOAD, DOWNLOAD = 10_000_000, 300_000, 3_000_000
WITHIN = 1.05  # of the limit
SLOW_S = 240.0  # for a process to start on a busy machine


def has_fetched(files: Path, number: int) -> bool:
    return (files / FETCHED).exists() and json.loads((files / FETCHED).read_text()) == number


def test_a_lent_worker_keeps_to_its_line_and_its_disk(
    small_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version and the worker's other files fit on the disk; a second version beside them does not."""
    monkeypatch.setattr(module, "scope_command", lambda *_: [sys.executable, str(MOVER)])
    small_world.announce()
    limits = MachineLimits(disk=DISK, upload=UPLOAD, download=DOWNLOAD)
    folder = LendFolder(home=tmp_path / "state")
    files = folder.files_of(small_world.url)
    with origin_at(tmp_path, key=ORIGIN) as origin, DiskWatch(files) as disk:
        flags = ("--allow-code", "--relay", origin.server.url)
        key = str(tmp_path / "node.key")
        folder.write_settings(Settings(join=small_world.url, limits=limits, key=key, worker=flags))
        supervisor = Supervisor(folder)

        def works_until(ready: Callable[[], bool]) -> None:
            def turn() -> bool:
                time.sleep(module.POLL_S)
                found = supervisor.turn()
                assert found.state in ("starting", "working"), f"{found.reason}: {folder.log.read_text()}"
                return ready()

            until(turn, SLOW_S)

        try:
            for number in range(VERSIONS):
                size = tree_bytes(origin.publish(number, mib=4.0))
                works_until(partial(has_fetched, files, number))
            works_until((files / MOVED).exists)
        finally:
            supervisor._end_child()
    (received, received_s), (sent, sent_s) = json.loads((files / MOVED).read_text())
    assert size <= received <= WITHIN * DOWNLOAD * received_s
    assert small_world.coordinator.terms.max_upload <= sent <= WITHIN * UPLOAD * sent_s
    assert OTHER_BYTES + size < disk.peak <= WITHIN * DISK


def test_versions_have_what_other_files_of_the_worker_leave_of_the_disk(tmp_path: Path) -> None:
    versions = tmp_path / "nodes" / "worker"
    for file, size in ((versions / "v0" / "model", 700), (tmp_path / "logs" / "log", 200), (tmp_path / "card", 50)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    assert _room_for_versions(tmp_path, versions, 1000) == 750, "what versions take now is theirs already"
    assert _room_for_versions(tmp_path, versions, 200) == 0, "never less than nothing"
    assert _room_for_versions(tmp_path / "new", tmp_path / "new" / "worker", 1000) == 1000


@pytest.fixture
def line() -> Iterator[None]:
    yield
    limit_line(None, None)


def test_the_line_is_limited_before_a_worker_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: None) -> None:
    """Joining fetches the run's task files, which may be gigabytes."""
    seen: list[float | None] = []

    def join_run(*_: object) -> None:
        seen.extend((RECEIVED.bytes_per_s, SENT.bytes_per_s))
        raise ConfigError("far enough")

    monkeypatch.setattr("shoal.cli.lend.join_run", join_run)
    done = shoal(tmp_path, "worker", "--join", "http://127.0.0.1:1", "--download", "1M", "--upload", "500k")
    assert "far enough" in done.stderr
    assert seen == [1_000_000, 500_000]
