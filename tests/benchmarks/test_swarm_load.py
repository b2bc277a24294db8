"""The load half of the swarm benchmark: what it counts, and that it counts what goes wrong."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.progress import Progress
from benchmarks.swarm.load import CONFIG, coordinator_of, figures, play
from benchmarks.swarm.nodes import Load, Tally, percentile
from benchmarks.swarm.services import share_of_services
from shoal.config_io import check_config
from shoal.errors import BenchError
from shoal.rundir import key_path


def test_the_share_of_services_is_of_the_roles_that_compute() -> None:
    used = {"coordinator": 1.0, "origin": 0.5, "relay": 0.5, "trainer": 12.0, "validator": 3.0, "worker-0": 5.0}
    assert share_of_services(used) == pytest.approx(0.1)


def test_a_percentile_is_one_of_the_waits() -> None:
    waits = [float(n) for n in range(1, 101)]
    assert percentile(waits, 0.99) == 100.0
    assert percentile(waits, 0.5) == 51.0
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.99))


def test_every_fault_counts_and_a_few_kinds_are_kept() -> None:
    tally = Tally()
    for n in range(20):
        tally.fail(f"fault {n}")
        tally.fail("fault 0")
    assert tally.errors == 40
    assert len(tally.faults) == 5
    assert tally.faults["fault 0"] == 21


@pytest.fixture
def progress() -> Progress:
    return Progress(Console(stderr=True, quiet=True))


def short_load(url: str, run: Path) -> Load:
    keys = {role: str(key_path(run, role)) for role in ("trainer", "validator")}
    return Load(
        url=url, **keys, nodes=8, files_per_step=10, hurried=4, warm_s=0.3, hurry_s=3.0, steady_s=3.0, share=0.2
    )


def test_nodes_work_and_versions_come_without_an_error(tmp_path: Path, progress: Progress) -> None:
    changes = {"train": {"groups_per_step": 10}, "swarm": {"heartbeat_s": 0.2}}
    run = tmp_path / "run"
    with coordinator_of(check_config({**CONFIG, **changes}, "test"), run) as url:
        found = play(short_load(url, run), progress, tmp_path / "log")
    assert found["errors"] == 0, found["faults"]
    assert found["versions"] >= 1
    told = figures(found)
    for name in ("leases_per_s", "uploads_per_s", "most_leases_per_s", "most_uploads_per_s", "heartbeat_p99_ms"):
        assert float(told[name]) > 0, name
    assert found["steady"]["uploads_per_s"] < found["hurried"]["uploads_per_s"]


def test_a_node_that_is_refused_is_an_error(tmp_path: Path, progress: Progress) -> None:
    run = tmp_path / "run"
    with coordinator_of(check_config({**CONFIG, "swarm": {"max_nodes": 6}}, "test"), run) as url:
        load = short_load(url, run)
        found = play(replace(load, warm_s=0.1, hurry_s=0.1, steady_s=0.1), progress, tmp_path / "log")
    assert found["errors"] >= 4  # six in all, of which two are trainer and validator
    assert any("which is the maximum" in fault for fault in found["faults"])


def test_nodes_that_cannot_go_on_end_the_bench_with_their_words(tmp_path: Path, progress: Progress) -> None:
    load = short_load("http://127.0.0.1:1", tmp_path)
    with pytest.raises(BenchError, match=r"simulated nodes: ended with 1 at the start:(.|\n)*127.0.0.1:1"):
        play(load, progress, tmp_path / "log")
