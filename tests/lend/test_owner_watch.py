"""The owner is looked at beside the loop that hears the owner: a program that hangs holds up nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.lend.machine_state import MachineState
from shoal.lend.owner_watch import NOT_YET, OwnerWatch
from shoal.lend.state_files import LendFolder, Settings
from shoal.lend.supervisor import Supervisor
from shoal.lend.when import DAY, Hours, When
from tests.support.until import until

IDLE = When(idle=True)
SESSIONS = "2 1000 me seat0\n"


class Desktop:
    """What `loginctl` says, and how long it thinks about it."""

    def __init__(self) -> None:
        self.idle_hint = "yes"
        self.answers = threading.Event()
        self.asked = 0

    def __call__(self, command: list[str]) -> str:
        self.asked += 1
        self.answers.wait(30.0)
        return SESSIONS if "list-sessions" in command else f"Type=wayland\nIdleHint={self.idle_hint}\n"


@pytest.fixture
def desktop() -> Iterator[Desktop]:
    desktop = Desktop()
    yield desktop
    desktop.answers.set()


def machine(path: Path, desktop: Desktop) -> MachineState:
    return MachineState(lambda: 0.0, path / "power", path / "dev", path / "proc", run=desktop)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.lend.owner_watch.FIRST_S", 0.01)
    monkeypatch.setattr("shoal.lend.machine_state.ASK_S", 0.0)


def test_a_machine_does_not_work_before_it_is_known_to_be_idle(tmp_path: Path, desktop: Desktop) -> None:
    watch = OwnerWatch(machine(tmp_path, desktop))
    assert watch.why_not(IDLE) == NOT_YET
    desktop.answers.set()
    until(lambda: watch.why_not(IDLE) == "", 30.0)
    desktop.idle_hint = "no"
    until(lambda: watch.why_not(IDLE).startswith("somebody used the machine 0 s ago"), 30.0)


def test_a_look_that_hangs_is_not_repeated_and_what_was_seen_before_counts(tmp_path: Path, desktop: Desktop) -> None:
    watch = OwnerWatch(machine(tmp_path, desktop))
    desktop.answers.set()
    until(lambda: watch.why_not(IDLE) == "", 30.0)
    desktop.answers.clear()
    looks = desktop.asked
    until(lambda: watch.why_not(IDLE) == "" and desktop.asked > looks, 30.0)  # one of them hangs now
    looks = desktop.asked
    assert [watch.why_not(IDLE) for _ in range(20)] == [""] * 20
    assert desktop.asked == looks


def test_hours_are_looked_up_at_once_also_while_a_look_hangs(tmp_path: Path, desktop: Desktop) -> None:
    looked = machine(tmp_path, desktop)
    now = looked.minute()
    later = Hours((now + 120) % DAY, (now + 180) % DAY)
    watch = OwnerWatch(looked)
    assert watch.why_not(IDLE) == NOT_YET
    assert watch.why_not(When()) == ""
    assert watch.why_not(When(hours=(later,))).startswith("it is ")
    assert watch.why_not(When(idle=True, hours=(later,))).startswith("it is "), "until a look with both is over"


def test_a_loop_that_hears_pauses_never_waits_for_a_look(tmp_path: Path, desktop: Desktop) -> None:
    folder = LendFolder(home=tmp_path)
    folder.write_settings(Settings(join="http://127.0.0.1:1", when=("idle",), key=str(tmp_path / "no.key")))
    supervisor = Supervisor(folder, machine(tmp_path, desktop))
    began = time.monotonic()
    assert supervisor.turn().reason == NOT_YET
    folder.write_control("pause")
    assert supervisor.turn().state == "paused"
    assert time.monotonic() - began < 10.0, "the program hangs for half a minute"
