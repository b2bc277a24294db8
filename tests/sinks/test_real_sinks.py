"""TensorBoard, trackio and Weights & Biases themselves, fed by `shoal feed`: what they hold is what the files say.

Packages that are not installed are skipped. `make test` has TensorBoard and wandb, `make test-trackio` has trackio.
"""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.extras import is_installed
from shoal.rundir import RunDir
from shoal.sinks.rows import Rows
from shoal.watch.history import History
from tests.support.sink_runs import files_of, write_run, write_step

Points = dict[tuple[str, int], list[float]]
"""Values by curve and number: all that were written, so that a double point shows."""
STEPS = 7
WAIT_S = 280.0
WANDB_HEADER = 7
BLOCK = 32_768


def tensorboard_points(run: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "sinks" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found: Points = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found.setdefault((tag, event.step), []).append(event.value)
    return found


def trackio_points(run: Path) -> Points:
    found: Points = {}
    for file in (run / "sinks" / "trackio").glob("*.db"):
        with sqlite3.connect(file) as db:
            for step, metrics in db.execute("SELECT step, metrics FROM metrics"):
                for name, value in json.loads(metrics).items():
                    found.setdefault((name, step), []).append(value)
    return found


def log_records(data: bytes, skipped: int) -> Iterator[bytes]:
    """Records of a log in LevelDB's format, of which wandb's files are made after their header."""
    at, part = 0, b""
    while at + 7 <= len(data):
        if (left := BLOCK - (skipped + at) % BLOCK) < 7:  # a block's end that holds no record
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if not kind:
            return
        part = (part if kind in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield part


def wandb_points(run: Path) -> Points:
    from wandb.proto import wandb_internal_pb2

    found: Points = {}
    for file in sorted((run / "sinks" / "wandb").rglob("*.wandb")):
        for data in log_records(file.read_bytes()[WANDB_HEADER:], WANDB_HEADER):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                for name, value in items.items():
                    group = {"workers": "train", "validators": "train"}.get(head := name.partition("/")[0], head)
                    at = items.get(f"{group}/step", items.get(f"{group}/version", -1))
                    if not name.startswith("_") and name not in (f"{group}/step", f"{group}/version"):
                        found.setdefault((name, int(at)), []).append(value)
    return found


READERS: dict[str, Callable[[Path], Points]] = {
    "tensorboard": tensorboard_points,
    "trackio": trackio_points,
    "wandb": wandb_points,
}
OPTIONS = {"wandb": ["--set", "log.wandb.mode=offline"]}


@pytest.fixture(params=sorted(READERS))
def sink(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not is_installed(name):
        pytest.skip(f"{name} is not installed: pip install 'shoal-rl[{name}]'")
    return name


def expected(run: RunDir) -> dict[tuple[str, int], float]:
    rows = Rows().take(History(run.path).refresh())
    return {(name, row.number): value for row in rows for name, value in row.values.items()}


def check(run: RunDir, sink: str) -> None:
    """Every point of the files is there, once, with its value."""
    found, wanted = READERS[sink](run.path), expected(run)
    assert set(found) == set(wanted)
    assert Counter(len(values) for values in found.values()) == {1: len(wanted)}
    for key, (value,) in found.items():
        assert value == pytest.approx(wanted[key], rel=1e-6, abs=1e-9)


def start(run: RunDir, sink: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shoal", "feed", str(run.path), sink, *OPTIONS.get(sink, []), *options]
    with (run.path.parent / f"{sink}.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "WANDB_API_KEY": "", "HOME": "/tmp"}
        )


def feed(run: RunDir, sink: str) -> None:
    process = start(run, sink)
    assert process.wait(WAIT_S) == 0, (run.path.parent / f"{sink}.log").read_text()


def test_a_run_is_fed_whole_then_more_of_it_and_never_twice(tmp_path: Path, sink: str) -> None:
    run = write_run(tmp_path / "run", STEPS)
    before = files_of(run.path)
    feed(run, sink)
    assert files_of(run.path) == before
    check(run, sink)
    write_step(run, STEPS)
    feed(run, sink)
    check(run, sink)


def until(holds: Callable[[], bool], within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def points_so_far(run: RunDir, sink: str) -> Iterator[tuple[str, int]]:
    if not (run.path / "sinks" / sink).is_dir():
        return
    try:
        yield from READERS[sink](run.path)
    except (OSError, sqlite3.Error, AssertionError, KeyError):  # it is being written
        return


def test_a_feeder_that_is_killed_goes_on_without_a_gap_or_a_double_point(tmp_path: Path, sink: str) -> None:
    run = write_run(tmp_path / "run", STEPS)
    process = start(run, sink, "--follow")
    until(lambda: ("train/reward", STEPS - 1) in set(points_so_far(run, sink)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    write_step(run, STEPS)
    feed(run, sink)
    check(run, sink)
