"""A lent machine obeys its owner: pause, finish and resume, whatever is killed, jumps or is rubbish meanwhile.

The coordinator is real, and so is the worker's process and its lease; only the engine is left out.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.client.identity import default_home
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, StorageError
from shoal.lend import supervisor as module
from shoal.lend.machine_state import MachineState
from shoal.lend.process_tree import TICKS, Usage, usage_of
from shoal.lend.state_files import LendFolder, Settings
from shoal.lend.supervisor import Supervisor, hand_back
from shoal.limits import MachineLimits
from tests.support.coordinator_in_process import World
from tests.support.until import until

STAND_IN = Path(__file__).parents[1] / "support" / "lent_worker.py"
OWN_CODE = ("--allow-code",)  # tasks need not be tried in a confined process first, which takes seconds
SLOW_S = 240.0  # for a process to start on a busy machine


class Lent:
    """One lent machine: its folder, its supervisor in a thread, and its run's coordinator."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.key = path / "node.key"
        self.folder = LendFolder(home=path / "state")
        self.wall = time.time()
        self.agree()
        self._thread: threading.Thread | None = None
        self.supervisor: Supervisor | None = None
        self.ended = ""

    def agree(
        self, when: tuple[str, ...] = (), limits: MachineLimits | None = None, worker: tuple[str, ...] = ()
    ) -> None:
        bounds, key = limits or MachineLimits(), str(self.key)
        settings = Settings(join=self.world.url, when=when, limits=bounds, key=key, worker=worker)
        self.folder.write_settings(settings)

    def start(self) -> Supervisor:
        machine = MachineState(lambda: 0.0, wall=lambda: self.wall)
        self.supervisor = supervisor = Supervisor(self.folder, machine)

        def run() -> None:
            with self.folder.held():
                self.ended = supervisor.run()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return supervisor

    def stop(self) -> None:
        if self.supervisor is not None and self._thread is not None:
            self.supervisor.stop.set()
            self._thread.join(30.0)
            assert not self._thread.is_alive()

    def until(self, state: str) -> None:
        until(lambda: (found := self.folder.status()) is not None and found.state == state, SLOW_S)

    @property
    def holds(self) -> str:
        with suppress(OSError):
            return (self.folder.files_of(self.world.url) / "holds").read_text()
        return ""

    def until_it_holds(self, lease: str) -> int:
        """Waits until the worker has a lease; the number of its process."""
        until(lambda: self.holds == lease, SLOW_S)
        found = self.folder.status()
        assert found is not None
        child = self.supervisor.child if self.supervisor else None
        assert child is not None
        return child.process.pid

    def leased(self) -> int:
        return self.world.trainer.count(0).leased

    def owed(self) -> int:
        address = Key.load(self.key).address
        nodes = self.world.trainer._link.get("/v1/status")["nodes"]
        return int(next(node["owed"] for node in nodes if node["address"] == address))


@pytest.fixture
def lent(small_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lent]:
    monkeypatch.setattr(module, "scope_command", lambda *_: [sys.executable, str(STAND_IN)])
    small_world.announce()
    lent = Lent(small_world, tmp_path)
    yield lent
    lent.stop()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    return False


def test_a_pause_ends_the_worker_at_once_and_hands_its_lease_back_and_resume_gets_the_same_draw(lent: Lent) -> None:
    lent.start()
    pid = lent.until_it_holds("0/0")
    assert lent.leased() == 2
    asked = time.monotonic()
    lent.folder.write_control("pause")
    until(lambda: not is_alive(pid), SLOW_S)
    at_once = time.monotonic() - asked
    lent.until("paused")
    until(lambda: lent.leased() == 0, SLOW_S)
    assert lent.owed() == 1, "a draw that was let go is owed"
    lent.folder.write_control("work")
    lent.until_it_holds("0/1")
    assert at_once < 30.0


def test_finish_hands_in_what_is_under_way_and_then_ends(lent: Lent) -> None:
    lent.start()
    lent.until_it_holds("0/0")
    lent.folder.write_control("finish")
    until(lambda: lent.ended != "", SLOW_S)
    assert lent.ended == "the leases were handed in"
    assert [upload.submission for upload in lent.world.validator.waiting(0, 0)] == [0]
    assert lent.owed() == 0


def test_a_worker_that_dies_before_it_has_handed_in_is_not_said_to_have_finished(lent: Lent) -> None:
    lent.start()
    pid = lent.until_it_holds("0/0")
    os.kill(pid, signal.SIGSTOP)  # it hears nothing any more
    lent.folder.write_control("finish")
    lent.until("finishing")
    os.kill(pid, signal.SIGKILL)
    until(lambda: lent.ended != "", SLOW_S)
    assert lent.ended == "nothing more was handed in: the worker was killed by signal 9"
    assert lent.leased() == 0, "what it held was handed back"
    assert lent.owed() == 1


def test_a_finish_of_a_machine_that_was_paused_does_not_claim_to_have_handed_in_anything(lent: Lent) -> None:
    lent.start()
    lent.until_it_holds("0/0")
    lent.folder.write_control("pause")
    lent.until("paused")
    lent.folder.write_control("finish")
    until(lambda: lent.ended != "", SLOW_S)
    assert lent.ended == "nothing was under way"


def test_a_supervisor_that_is_told_to_stop_hands_back_what_is_under_way(lent: Lent) -> None:
    lent.start()
    pid = lent.until_it_holds("0/0")
    lent.stop()
    assert not is_alive(pid)
    assert lent.leased() == 0
    status = lent.folder.status()
    assert status is not None
    assert (status.state, status.handed_back) == ("ended", 1)


def test_a_worker_that_is_killed_is_started_again_and_keeps_its_lease(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.lend.decisions.FIRST_RETRY_S", 0.1)
    lent.start()
    pid = lent.until_it_holds("0/0")
    (lent.folder.files_of(lent.world.url) / "holds").unlink()
    os.kill(pid, signal.SIGKILL)
    assert lent.until_it_holds("0/0") != pid
    assert lent.owed() == 0


def test_a_worker_that_fails_again_and_again_does_not_keep_its_lease(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.lend.decisions.FIRST_RETRY_S", 0.01)
    lent.start()
    pid = lent.until_it_holds("0/0")
    monkeypatch.setenv("LENT_WORKER", "crash")
    os.kill(pid, signal.SIGKILL)
    until(lambda: lent.leased() == 0, SLOW_S)
    lent.until("retrying")


def test_a_run_that_is_out_of_reach_keeps_no_machine_from_its_owner(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is handed back when the coordinator is there again."""
    monkeypatch.setattr(module, "HAND_BACK_S", 0.2)
    monkeypatch.setattr(module, "HAND_BACK_RETRY_S", 0.1)
    lent.start()
    pid = lent.until_it_holds("0/0")
    lent.world.stop()
    lent.folder.write_control("pause")
    until(lambda: not is_alive(pid), SLOW_S)
    until(lambda: "could not be handed back yet" in (s.note if (s := lent.folder.status()) else ""), SLOW_S)
    lent.world.start()
    until(lambda: lent.leased() == 0, SLOW_S)


RUBBISH = [
    b"",
    b"{",
    b'{"want": "dance"}',
    b'{"want": "work", "more": 1}',
    b"\xff\xfe\x00",
    b"[" * 10_000,
    b"x" * 100_000,
]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_in_the_control_file_is_a_pause_that_says_why_and_resume_writes_it_again(
    rubbish: bytes, lent: Lent
) -> None:
    (lent.folder.path / "control.json").write_bytes(rubbish)
    supervisor = Supervisor(lent.folder)
    supervisor._holds_leases = False
    assert supervisor.turn().state == "paused"
    status = lent.folder.status()
    assert status is not None
    assert "paused, because" in status.note
    assert "control.json" in status.note
    lent.folder.write_control("finish")
    assert supervisor.turn().act == "exit"


def test_a_control_file_that_is_a_pipe_or_a_directory_stops_nothing(lent: Lent) -> None:
    for make in (os.mkfifo, os.mkdir):
        make(lent.folder.path / "control.json")
        supervisor = Supervisor(lent.folder)
        supervisor._holds_leases = False
        assert supervisor.turn().state == "paused"
        path = lent.folder.path / "control.json"
        path.rmdir() if path.is_dir() else path.unlink()


def test_rubbish_in_the_settings_changes_nothing_while_it_works_and_is_an_error_at_the_start(lent: Lent) -> None:
    lent.folder.write_control("pause")
    supervisor = Supervisor(lent.folder)
    supervisor._holds_leases = False
    (lent.folder.path / "settings.json").write_text('{"join": 7}')
    supervisor.turn()
    status = lent.folder.status()
    assert status is not None
    assert "goes on with the settings before" in status.note
    with pytest.raises(ConfigError, match=r"settings.json: join: "):
        Supervisor(lent.folder)


def test_two_supervisors_of_one_machine_are_refused_and_another_device_is_not(lent: Lent, tmp_path: Path) -> None:
    with lent.folder.held():
        assert lent.folder.is_running()
        with pytest.raises(StorageError, match="this machine is lent already"), lent.folder.held():
            pass
        with LendFolder("gpu-1", tmp_path / "state").held():
            pass
    assert not lent.folder.is_running()


def test_a_machine_that_was_never_lent_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="begin with shoal lend start URL"):
        Supervisor(LendFolder(home=tmp_path))
    assert not LendFolder(home=tmp_path).is_running()
    assert LendFolder().path == default_home() / "lend" / "worker"


def test_a_worker_that_uses_more_memory_than_allowed_is_ended_and_not_started_again(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENT_WORKER", "eat")
    limit = 600 * 10**6
    lent.agree(limits=MachineLimits(memory=limit))
    lent.start()
    lent.until("stopped")
    status = lent.folder.status()
    assert status is not None
    assert "--memory 600 MB: the worker used" in status.reason
    assert limit < status.peak_memory <= 1.05 * limit, "held within 5 %"
    until(lambda: lent.leased() == 0, SLOW_S)


def test_a_limit_that_is_too_small_for_the_model_stops_with_the_reason_until_it_is_changed(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENT_WORKER", "limit")
    lent.agree(limits=MachineLimits(memory=600 * 10**6))
    lent.start()
    lent.until("stopped")
    status = lent.folder.status()
    assert status is not None
    assert status.reason == "--memory 600 MB: this run needs 2 GB here; raise it; shoal lend limits changes it"
    monkeypatch.setenv("LENT_WORKER", "hold")
    lent.agree(limits=MachineLimits(memory=3 * 10**9))
    lent.until_it_holds("0/0")


def test_other_limits_hold_after_the_leases_under_way(lent: Lent) -> None:
    lent.start()
    pid = lent.until_it_holds("0/0")
    lent.agree(limits=MachineLimits(threads=1))
    assert lent.until_it_holds("0/1") != pid
    assert [upload.submission for upload in lent.world.validator.waiting(0, 0)] == [0], "it was handed in"


def local(hour: int) -> float:
    """A moment of today at which the local clock shows this hour."""
    now = time.localtime()
    return time.mktime((now.tm_year, now.tm_mon, now.tm_mday, hour, 30, 0, 0, 0, -1))


def test_a_clock_that_jumps_out_of_the_hours_and_back_ends_the_worker_and_starts_it(lent: Lent) -> None:
    lent.agree(when=("22:00-07:00",))
    lent.wall = local(23)
    lent.start()
    pid = lent.until_it_holds("0/0")
    lent.wall = local(12)
    lent.until("waiting")
    status = lent.folder.status()
    assert status is not None
    assert status.reason.startswith("it is 12:30, outside 22:00-07:00")
    assert not is_alive(pid)
    until(lambda: lent.leased() == 0, SLOW_S)
    lent.wall = local(23) - 365 * 86400.0
    lent.until_it_holds("0/1")


def test_a_worker_dies_with_a_supervisor_that_is_killed_and_the_next_one_gets_its_lease_back(lent: Lent) -> None:
    script = (
        "import sys; from pathlib import Path; from shoal import priority; from shoal.lend import supervisor as s; "
        "from shoal.lend.state_files import LendFolder; "
        f"s.scope_command = lambda *_: [sys.executable, {str(STAND_IN)!r}]; priority.NICE = 0; "
        f"s.supervise(LendFolder(home=Path({str(lent.folder.path.parents[1])!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: lent.holds == "0/0", SLOW_S)
    assert lent.folder.is_running()
    until(lambda: (found := lent.folder.status()) is not None and found.worker is not None, SLOW_S)
    status = lent.folder.status()
    assert status is not None
    worker = status.worker
    assert worker is not None
    process.kill()
    process.wait()
    until(lambda: not is_alive(worker), SLOW_S)
    assert not lent.folder.is_running()
    (lent.folder.files_of(lent.world.url) / "holds").unlink()
    lent.start()
    lent.until_it_holds("0/0")


def test_a_node_that_never_joined_has_nothing_to_hand_back(lent: Lent) -> None:
    assert hand_back(lent.folder.settings(), "paused") == 0
    Key.load_or_create(lent.key)
    assert hand_back(lent.folder.settings(), "paused") == 0


def test_a_pause_before_the_worker_has_joined_leaves_no_note(lent: Lent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENT_WORKER", "load")
    Key.load_or_create(lent.key)
    supervisor = lent.start()
    until(lambda: supervisor.child is not None, SLOW_S)
    lent.folder.write_control("pause")
    lent.until("paused")
    until(lambda: supervisor._notes or not supervisor._holds_leases, SLOW_S)
    status = lent.folder.status()
    assert status is not None
    assert (status.note, status.handed_back, supervisor._notes) == ("", 0, {})


def test_a_run_that_was_never_joined_and_is_out_of_reach_leaves_no_note(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HAND_BACK_S", 0.2)
    Key.load_or_create(lent.key)
    lent.world.stop()
    lent.folder.write_control("pause")
    supervisor = lent.start()
    until(lambda: supervisor._notes or not supervisor._holds_leases, SLOW_S)
    assert supervisor._notes == {}


def test_what_a_worker_prints_is_bounded_while_it_runs(lent: Lent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENT_WORKER", "talk")
    monkeypatch.setattr("shoal.lend.state_files.MAX_LOG", 10_000)
    lent.start()
    pid = lent.until_it_holds("0/0")
    log, old = lent.folder.log, lent.folder.path / "worker.log.1"
    until(old.exists, SLOW_S)
    first = old.stat().st_ino
    until(lambda: old.stat().st_ino != first, SLOW_S)
    assert old.stat().st_size == 10_000
    assert set(old.read_text() + log.read_text()) == {"x", "\n"}, "it goes on at the beginning of an emptied file"
    assert is_alive(pid)


def test_memory_of_a_process_is_counted_with_that_of_all_that_it_started() -> None:
    eat = "import time; x = b'x' * 60_000_000; print(1, flush=True); time.sleep(60)"
    parent = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {eat!r}]); {eat}"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"1\n1\n"
        found = usage_of(process.pid)
        assert found.processes == 2
        assert 120e6 < found.memory < 200e6
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert usage_of(process.pid).memory == 0


def test_cpu_time_of_children_that_have_ended_is_the_workers_and_a_live_childs_counts_once(
    tmp_path: Path,
) -> None:
    memory = "RssAnon: 1 kB\nRssShmem: 0 kB\n"

    def process(pid: int, *seconds: float, children: str = "", status: str = memory) -> None:
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(pid) / "children").write_text(children)
        ticks = " ".join(str(int(each * TICKS)) for each in seconds)
        (folder / "stat").write_text(f"{pid} (a b) c) S {' '.join(['0'] * 10)} {ticks} 20 0\n")
        (folder / "status").write_text(status)

    process(10, 1, 2, 0, 0, children="11")
    process(11, 40, 2, 0, 0)
    assert usage_of(10, tmp_path) == Usage(memory=2048, cpu_s=45.0, processes=2)
    process(11, 40, 2, 0, 0, status="State: Z (zombie)\n")
    assert usage_of(10, tmp_path) == Usage(memory=1024, cpu_s=45.0, processes=1)
    process(10, 1, 2, 40, 2)
    assert usage_of(10, tmp_path) == Usage(memory=1024, cpu_s=45.0, processes=1)


def test_a_lent_process_never_gets_a_higher_priority_than_its_owner_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.priority.NICE", 10)
    for niceness, expected in ((0, 10), (15, 15)):
        process = subprocess.Popen(["sleep", "60"])
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
            module.lower(process.pid, threads=1)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) >= expected
            assert len(os.sched_getaffinity(process.pid)) == 1
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def really_lent(small_world: World, tmp_path: Path) -> Iterator[Lent]:
    """A machine whose worker is `shoal worker` itself; it joins, and finds no relay."""
    small_world.announce()
    lent = Lent(small_world, tmp_path)
    lent.agree(worker=OWN_CODE)
    yield lent
    lent.stop()


def test_a_worker_that_is_told_to_finish_while_it_starts_is_not_killed_by_that(really_lent: Lent) -> None:
    supervisor = really_lent.start()
    until(lambda: supervisor.child is not None, SLOW_S)
    really_lent.folder.write_control("finish")
    until(lambda: really_lent.ended != "", SLOW_S)
    assert really_lent.ended == "the leases were handed in", really_lent.folder.log.read_text()


def test_other_limits_while_a_worker_starts_do_not_count_as_its_failure(really_lent: Lent) -> None:
    supervisor = really_lent.start()
    until(lambda: supervisor.child is not None, SLOW_S)
    first = supervisor.child
    really_lent.agree(limits=MachineLimits(threads=1), worker=OWN_CODE)
    until(lambda: supervisor.child not in (None, first), SLOW_S)
    assert supervisor._failures == 0
    assert supervisor._started_with == supervisor.settings
