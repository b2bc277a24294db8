"""The broadcast benchmark in small: every side delivers what it was given, and ratios follow from what was measured."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.run import find_benchmark
from benchmarks.weights import broadcast
from benchmarks.weights.broadcast import Cost, Size, compare, first_bytes, in_turns, origin_bytes, random_file, scratch
from benchmarks.weights.broadcast_ours import Ours
from benchmarks.weights.broadcast_sides import Nginx, Shardcast, Side, links
from shoal.errors import ShoalError
from shoal.files import cache_dir

SMALL = Size(1, {2: 3_000_000}, chain_rounds=1, chain_bytes=3_000_000, rate=16e6, publications=2)


def test_it_is_found_by_name() -> None:
    assert find_benchmark("broadcast") is broadcast.bench_broadcast


def test_all_sides_deliver_the_same_bytes_and_ours_is_not_last(tmp_path: Path) -> None:
    cache = cache_dir()
    try:
        peers: list[Side] = [Shardcast(cache), Nginx("pass", cache), Nginx("cache", cache)]
    except ShoalError as error:
        pytest.skip(f"the peers are not available: {error}")
    data = random_file(tmp_path / "data.bin", 3_000_000)
    progress = Progress(Console(stderr=True, quiet=True))
    costs = in_turns([Ours(), *peers], tmp_path, data, 2, 3, progress)
    assert set(costs) == {"shoal", "shardcast", "nginx-pass", "nginx-cache"}
    assert all(cost.seconds > 0 and cost.cpu >= 0 for cost in costs.values())
    assert costs["shoal"].seconds < costs["shardcast"].seconds
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_the_origin_sends_a_version_once_and_its_first_byte_soon(tmp_path: Path) -> None:
    with links() as link:
        assert 1.0 <= origin_bytes(Ours(), link, tmp_path, SMALL.chain_bytes, 2) < 1.02
        waits = first_bytes(Ours(), link, tmp_path, SMALL)
    assert len(waits) == SMALL.publications
    assert all(0 < wait < 5000 for wait in waits)


def test_ratios_are_theirs_over_ours_for_shardcast_and_ours_over_the_faster_nginx() -> None:
    costs = {
        "shoal": Cost(2.0, 3.0),
        "shardcast": Cost(10.0, 12.0),
        "nginx-pass": Cost(4.0, 1.0),
        "nginx-cache": Cost(5.0, 1.0),
    }
    assert compare(costs, 8) == {"vs_shardcast_8": 5.0, "vs_nginx_8": 0.5, "cpu_vs_shardcast_8": 0.25}


def test_less_is_sent_where_there_is_no_room_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "_room", lambda place: 1e6)
    console = Console(record=True, width=200, quiet=False, file=io.StringIO())
    with Progress(console) as progress, scratch(SMALL, progress) as (folder, scale):
        assert folder.is_dir()
        assert scale == pytest.approx(1e6 / (3e6 * 9))
    assert not folder.exists()
    assert "has room for 4% of the data" in console.export_text()
