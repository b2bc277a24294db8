"""A sink that hangs, raises, exits or is killed costs a run a sentence: none of its files changes and nothing waits."""

import os
import time
from pathlib import Path

import pytest

from shoal.roles import side_process, sink_feeders
from shoal.roles.sink_feeders import SinkFeeders
from shoal.rundir import RunDir
from tests.support.sink_runs import bad_package, files_of, wait_for_rows, write_run, write_step

# What a look of the supervisor may take, on a machine that is busy; it looks four times per second.
LOOK_S = 0.2


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", 2, log={"wandb": {}})


def put_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a folder the first place where processes and this test look for packages."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("how", ["raises", "exits", "is killed"])
def test_a_sink_that_fails_is_given_up_with_a_sentence_and_the_run_goes_on(
    tmp_path: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    put_first(bad_package(tmp_path / "bad", how), monkeypatch)
    monkeypatch.setattr(side_process, "MAX_RESTARTS", 1)
    before, feeders = files_of(run.path), SinkFeeders(run)
    assert feeders.start() == []
    (feeder,) = feeders.processes
    said, slowest, deadline = None, 0.0, time.monotonic() + 240
    while said is None and time.monotonic() < deadline:
        began = time.thread_time()
        said = feeder.look()
        slowest = max(slowest, time.thread_time() - began)
        time.sleep(0.05)
    assert said is not None
    assert said.startswith("the feeder of wandb ended 2 times, with code ")
    assert said.endswith("the run goes on without it")
    assert slowest < LOOK_S
    assert files_of(run.path) == before
    assert feeder.look() is None
    assert feeders.finish() == []


def test_a_sink_that_hangs_holds_up_nothing_and_the_end_of_a_run_for_its_grace_alone(
    tmp_path: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_first(bad_package(tmp_path / "bad", "hangs"), monkeypatch)
    monkeypatch.setattr(sink_feeders, "FINISH_S", 0.5)
    feeders = SinkFeeders(run)
    assert feeders.start() == []
    wait_for_rows(run.path / "sinks" / "wandb" / "rows.txt", 1)  # it hangs in this row now
    (feeder,) = feeders.processes
    began = time.thread_time()
    for step in range(2, 12):
        write_step(run, step)
        assert feeder.look() is None
    assert time.thread_time() - began < 10 * LOOK_S
    before, began = files_of(run.path), time.monotonic()
    assert feeders.finish() == [f"wandb did not take everything; for the rest: shoal feed {run.path} wandb"]
    assert time.monotonic() - began < 60  # of which 0.5 s are given; the rest is the machine's
    assert files_of(run.path) == before
    assert (run.path / "sinks" / "wandb" / "rows.txt").read_text().count("\n") == 1


def test_a_sink_that_is_not_installed_is_named_and_not_started(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.extras.is_installed", lambda name: name != "wandb")
    feeders = SinkFeeders(run)
    (said,) = feeders.start()
    assert said.startswith("log.wandb: needs wandb; run: pip install 'shoal-rl[wandb]'; the run goes on without it")
    assert [process.child for process in feeders.processes] == [None]
    assert feeders.finish() == []


def test_a_run_without_sinks_starts_no_process(tmp_path: Path) -> None:
    assert SinkFeeders(write_run(tmp_path / "run", 1)).processes == []


def test_an_exporter_is_started_where_the_config_gives_it_a_port(tmp_path: Path) -> None:
    (exporter,) = SinkFeeders(write_run(tmp_path / "run", 1, log={"prometheus": 9400})).processes
    assert exporter.arguments == ["metrics", str(tmp_path / "run"), "--port", "9400"]
