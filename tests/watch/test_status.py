import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from shoal.errors import StorageError
from shoal.files import locked
from shoal.telemetry.status import RoleStatus, State, StatusFile, read_status, waits

from .conftest import hold_lock, put_status

NOW = 1000.0


def role(
    name: str, state: State = "working", doing: str = "", on: str = "", deadline: float | None = None
) -> RoleStatus:
    return RoleStatus(name, 1, state, doing, on, since=NOW - 3.2, deadline=deadline, beat=NOW)


def test_a_status_is_read_back_as_it_was_said(tmp_path: Path) -> None:
    hold_lock(tmp_path, "trainer")
    status = StatusFile(tmp_path / "status/trainer.json", "trainer")
    assert read_status(tmp_path)[0].state == "starting"
    before = time.time()
    status.waiting("rollouts of step 12", on="worker", timeout_s=600)
    after = time.time()
    (read,) = read_status(tmp_path)
    assert (read.role, read.pid, read.state) == ("trainer", os.getpid(), "waiting")
    assert (read.doing, read.on) == ("rollouts of step 12", "worker")
    assert read.deadline is not None
    assert before + 600 <= read.deadline <= after + 600


def test_saying_the_same_again_writes_nothing_and_keeps_the_first_deadline(tmp_path: Path) -> None:
    path = tmp_path / "status/trainer.json"
    status = StatusFile(path, "trainer")
    status.waiting("rollouts", on="worker", timeout_s=600)
    before, inode = path.read_bytes(), path.stat().st_ino
    status.waiting("rollouts", on="worker", timeout_s=9999)
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)


def test_an_unchanged_status_still_beats_once_a_second(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status/worker-0.json", "worker-0")
    status.waiting("version 3", on="trainer", timeout_s=600)
    (first,) = read_status(tmp_path)
    time.sleep(1.05)
    status.waiting("version 3", on="trainer", timeout_s=600)
    (second,) = read_status(tmp_path)
    assert second.beat >= first.beat + 1
    assert (second.since, second.deadline) == (first.since, first.deadline)


def test_progress_within_a_wait_keeps_its_beginning_and_sets_its_deadline_anew(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status/trainer.json", "trainer")
    status.waiting("20 of 32 groups", on="worker", timeout_s=600)
    (first,) = read_status(tmp_path)
    time.sleep(0.01)
    status.waiting("21 of 32 groups", on="worker", timeout_s=600)
    (second,) = read_status(tmp_path)
    assert second.since == first.since
    assert first.deadline is not None
    assert second.deadline is not None
    assert second.deadline > first.deadline


def test_shares_say_how_much_of_the_time_went_into_waiting_and_for_whom(tmp_path: Path) -> None:
    times = [time.monotonic()]  # before and after each call: a busy machine may pause us anywhere
    status = StatusFile(tmp_path / "status/worker-0.json", "worker-0")
    times.append(time.monotonic())
    status.waiting("version 1", on="trainer", timeout_s=None)
    times.append(time.monotonic())
    time.sleep(0.3)
    times.append(time.monotonic())
    status.working("generating")
    times.append(time.monotonic())
    time.sleep(0.1)
    times.append(time.monotonic())
    shares = status.shares()
    times.append(time.monotonic())
    least, most = (times[3] - times[2]) / (times[6] - times[0]), (times[4] - times[1]) / (times[5] - times[1])
    assert isinstance(shares["wait_share"], float)
    assert least <= shares["wait_share"] <= most
    assert shares["waits"] == {"trainer": shares["wait_share"]}
    time.sleep(0.05)
    assert status.shares() == {"wait_share": 0.0, "waits": {}}


def test_a_wait_still_going_on_counts_in_each_period(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status/worker-0.json", "worker-0")
    status.waiting("version 1", on="trainer", timeout_s=None)
    status.shares()
    for _ in range(2):
        time.sleep(0.02)
        assert status.shares()["wait_share"] == pytest.approx(1.0)


def test_a_role_whose_process_is_gone_is_dead(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from shoal.files import locked\n"
    script += "from shoal.telemetry.status import StatusFile\n"
    script += "with locked(Path(sys.argv[1]) / 'locks/worker-0', 'taken'):\n"
    script += "    StatusFile(Path(sys.argv[1]) / 'status/worker-0.json', 'worker-0').working('generating')\n"
    script += "    print('up', flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert [status.state for status in read_status(tmp_path)] == ["working"]
        process.kill()
    (status,) = read_status(tmp_path)
    assert (status.state, status.doing) == ("dead", "generating")


def test_a_process_that_bears_a_dead_roles_number_is_not_taken_for_it(tmp_path: Path) -> None:
    put_status(tmp_path, "trainer", pid=os.getpid(), alive=False)
    put_status(tmp_path, "worker-0", pid=2**40)
    assert [status.state for status in read_status(tmp_path)] == ["dead", "working"]


def test_looking_at_a_role_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    put_status(tmp_path, "trainer", alive=False)
    with locked(tmp_path / "locks/trainer", "taken"):
        assert read_status(tmp_path)[0].state == "working"
    assert read_status(tmp_path)[0].state == "dead"
    with locked(tmp_path / "locks/trainer", "taken"):
        pass


def test_a_role_that_said_how_it_ended_is_not_called_dead(tmp_path: Path) -> None:
    put_status(tmp_path, "trainer", alive=False, state="done")
    put_status(tmp_path, "worker-0", alive=False, state="failed")
    assert [status.state for status in read_status(tmp_path)] == ["done", "failed"]


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"role": "trainer"}', "\x00\xff"])
def test_a_rubbish_file_is_an_unreadable_role_and_hides_no_other(tmp_path: Path, rubbish: str) -> None:
    put_status(tmp_path, "trainer")
    (tmp_path / "status/worker-0.json").write_text(rubbish)
    assert [(status.role, status.state) for status in read_status(tmp_path)] == [
        ("trainer", "working"),
        ("worker-0", "unreadable"),
    ]


def test_a_run_without_statuses_has_no_roles(tmp_path: Path) -> None:
    assert read_status(tmp_path) == []


def test_roles_come_as_trainer_workers_by_number_then_the_rest(tmp_path: Path) -> None:
    for name in ("evaluator", "worker-10", "worker-9", "trainer"):
        put_status(tmp_path, name)
    assert [status.role for status in read_status(tmp_path)] == ["trainer", "worker-9", "worker-10", "evaluator"]


def test_a_wait_on_workers_names_them_all_with_the_time_gone_and_left() -> None:
    trainer = role("trainer", "waiting", "rollouts of step 12: 20 of 32 groups", "worker", NOW + 597)
    assert waits([trainer, role("worker-0"), role("worker-1"), role("evaluator")], NOW) == [
        "trainer waits on worker-0, worker-1: rollouts of step 12: 20 of 32 groups (3.2 s, gives up in 597 s)"
    ]


def test_a_wait_on_someone_who_cannot_answer_says_so() -> None:
    trainer = role("trainer", "waiting", "rollouts", "worker")
    assert waits([trainer, role("worker-0", "dead"), role("worker-1")], NOW) == [
        "trainer waits on worker-0 (dead), worker-1: rollouts (3.2 s)"
    ]
    assert waits([trainer], NOW) == ["trainer waits on worker (not started): rollouts (3.2 s)"]


def test_a_wait_past_its_deadline_says_since_when() -> None:
    worker = role("worker-0", "waiting", "version 3", "trainer", NOW - 20)
    assert waits([role("trainer"), worker], NOW) == [
        "worker-0 waits on trainer: version 3 (3.2 s, was to give up 20 s ago)"
    ]


def test_only_a_waiting_role_waits() -> None:
    statuses = [role("trainer", state, "x", "worker") for state in get_args(State) if state != "waiting"]
    assert waits(statuses, NOW) == []


def test_a_status_that_cannot_be_written_is_a_storage_error_but_never_hides_a_failure(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status/trainer.json", "trainer")
    (tmp_path / "status/trainer.json.tmp").mkdir()  # the way to a new status is blocked, as by a full disk
    with pytest.raises(StorageError, match=r"trainer\.json: status could not be written"):
        status.working("training step 1")
    status.failed("the loss is NaN")
    assert json.loads((tmp_path / "status/trainer.json").read_text())["state"] == "starting"
