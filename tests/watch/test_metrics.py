import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StorageError
from shoal.telemetry.metrics import MetricsWriter, Tail, number, read_metrics, read_steps

WRITE_FOREVER = """
import sys
from pathlib import Path
from shoal.telemetry.metrics import MetricsWriter
writer = MetricsWriter(Path(sys.argv[1]))
filling = ["x" * 1000] * 300
for step in range(10**9):
    writer.write("step", step=step, filling=filling)
    if step == 0:
        print("writing", flush=True)
"""


def test_a_writer_killed_with_sigkill_never_spoils_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics/trainer.jsonl"
    for kill in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        with MetricsWriter(path) as writer:
            writer.write("survivor", kill=kill)
        lines = path.read_bytes().splitlines(keepends=True)
        assert lines[-1].endswith(b"\n")
        assert json.loads(lines[-1])["kill"] == kill
    survivors = [entry["kill"] for entry in read_metrics(path) if entry["event"] == "survivor"]
    assert survivors == [0, 1, 2, 3]


@given(cut=st.integers(min_value=1, max_value=60))
def test_a_line_torn_anywhere_costs_that_line_alone(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "worker-0.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("submission", step=1)
        whole = path.stat().st_size
        writer.write("submission", step=2)
    os.truncate(path, max(whole, path.stat().st_size - cut))
    with MetricsWriter(path) as writer:
        writer.write("submission", step=3)
    steps = [entry["step"] for entry in read_metrics(path)]
    assert steps in ([1, 3], [1, 2, 3])
    assert steps == [1, 2, 3] or cut > 1


def test_nan_and_infinities_become_null_so_that_every_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "trainer.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("step", loss=float("nan"), kl=np.float32("inf"), waits={"worker": float("-inf")}, clip=[1, np.nan])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    entry = json.loads(path.read_text(), parse_constant=refuse)
    assert (entry["loss"], entry["kl"], entry["waits"], entry["clip"]) == (None, None, {"worker": None}, [1, None])


def test_numpy_scalars_are_written_as_numbers_and_booleans_stay_booleans(tmp_path: Path) -> None:
    path = tmp_path / "trainer.jsonl"
    with MetricsWriter(path) as writer:
        writer.write("step", step=np.int64(7), reward=np.float32(0.5), skipped=False)
    (entry,) = read_metrics(path)
    assert (entry["step"], entry["reward"], entry["skipped"]) == (7, 0.5, False)


def test_a_value_that_is_no_metric_is_refused_by_its_type(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m.jsonl") as writer, pytest.raises(TypeError, match="not PosixPath"):
        writer.write("step", model=Path("x"))


def test_a_full_disk_is_a_storage_error_that_names_the_file() -> None:
    with MetricsWriter(Path("/dev/full")) as writer, pytest.raises(StorageError, match=r"/dev/full.*free space"):
        writer.write("step", step=1)


def test_lines_that_are_no_entries_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"event": "a"}\n\xff\xfe\n[1]\n{"no": "event"}\n\n{"event": "b"}\n{"event": "c')
    assert [entry["event"] for entry in read_metrics(path)] == ["a", "b"]


def test_a_file_not_there_yet_has_no_entries(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path / "m.jsonl")) == []
    assert read_steps(tmp_path / "m.jsonl", "step") == []
    assert Tail(tmp_path / "m.jsonl").new() == []


def test_a_step_done_again_replaces_the_lost_one_and_steps_come_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trainer.jsonl"
    with MetricsWriter(path) as writer:
        for step, reward in [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25)]:
            writer.write("step", step=step, reward=reward)
        writer.write("note", step=0)
        writer.write("step", reward=0.9)
    assert [(entry["step"], entry["reward"]) for entry in read_steps(path, "step")] == [(0, 0.1), (1, 0.25), (2, 0.3)]


def test_a_tail_gives_each_entry_once_and_waits_until_a_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    tail = Tail(path)
    with path.open("wb", buffering=0) as file:
        file.write(b'{"event": "a"}\n{"event": ')
        assert [entry["event"] for entry in tail.new()] == ["a"]
        assert tail.new() == []
        file.write(b'"b"}\n')
        assert [entry["event"] for entry in tail.new()] == ["b"]
    path.write_bytes(b'{"event": "c"}\n')
    assert [entry["event"] for entry in tail.new()] == ["c"]


@pytest.mark.parametrize("value", [None, "0.5", float("nan"), [1.0], 10**400])
def test_what_is_no_finite_number_reads_as_none(value: object) -> None:
    assert number({"reward": value}, "reward") is None
    assert number({}, "reward") is None
