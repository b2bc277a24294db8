"""What is seen of a machine: its power supplies, its terminals, its desktop, and what other programs compute."""

import os
import sys
from pathlib import Path

import pytest

from shoal.lend.machine_state import ASK_S, TICKS, MachineState, desktop_in_use, said_by
from shoal.lend.when import Hours, When

GRAPHICAL = "Type=wayland\nIdleHint={}\n\nType=tty\nIdleHint=no\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def supply(folder: Path, name: str, **values: str) -> None:
    (folder / name).mkdir(parents=True)
    for key, value in values.items():
        (folder / name / key).write_text(value + "\n")


def machine(path: Path, clock: Clock, own: float = 0.0, said: dict[str, str] | None = None) -> MachineState:
    def run(command: list[str]) -> str:
        return (said or {}).get(command[1] if len(command) > 1 else command[0], "")

    return MachineState(lambda: own, path / "power", path / "dev", path / "proc", clock, clock, run)


SUPPLIES: dict[str, tuple[list[dict[str, str]], bool]] = {
    "a desktop": ([], True),
    "a laptop on mains": ([{"type": "Mains", "online": "1"}, {"type": "Battery", "status": "Charging"}], True),
    "a laptop on battery": ([{"type": "Mains", "online": "0"}, {"type": "Battery", "status": "Discharging"}], False),
    "a full laptop on mains": ([{"type": "Mains", "online": "1"}, {"type": "Battery", "status": "Not charging"}], True),
    "charged by USB": ([{"type": "USB", "online": "1"}, {"type": "Battery", "status": "Charging"}], True),
    "a desktop with a mouse": ([{"type": "Battery", "status": "Discharging", "scope": "Device"}], True),
    "rubbish": ([{"type": "\x00\x01", "online": "maybe"}], True),
}


@pytest.mark.parametrize("case", SUPPLIES)
def test_a_machine_is_plugged_in_unless_it_lives_on_its_battery(case: str, tmp_path: Path) -> None:
    supplies, plugged = SUPPLIES[case]
    for number, values in enumerate(supplies):
        supply(tmp_path / "power", f"S{number}", **values)
    assert machine(tmp_path, Clock()).plugged() == plugged


def test_the_last_input_is_that_of_the_terminal_used_last(tmp_path: Path) -> None:
    clock = Clock()
    for name, ago in (("pts/0", 4000.0), ("pts/1", 30.0), ("tty1", 90000.0)):
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (clock.now - ago, clock.now))
    (tmp_path / "dev" / "pts" / "ptmx").touch()
    assert machine(tmp_path, clock).input_s() == pytest.approx(30.0, abs=0.01)


def test_a_clock_that_was_set_back_hides_neither_an_idle_machine_nor_one_that_is_used(tmp_path: Path) -> None:
    wall, clock = Clock(), Clock()
    watched = MachineState(lambda: 0.0, tmp_path, tmp_path / "dev", tmp_path, wall, clock, lambda _: "")
    for name, at in (("tty1", wall.now), ("pts/0", wall.now - 7000)):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
        os.utime(tmp_path / "dev" / name, (at, at))
    wall.now -= 3600
    assert watched.input_s() == 0.0, "nobody knows when it was"
    wall.now, clock.now = wall.now + 600, clock.now + 600
    assert watched.input_s() == 600.0, "nobody has used it since"
    os.utime(tmp_path / "dev" / "pts" / "0", (wall.now, wall.now))
    assert watched.input_s() == 0.0


def test_a_machine_without_terminals_tells_of_no_input(tmp_path: Path) -> None:
    assert machine(tmp_path, Clock()).input_s() is None


def test_a_desktop_that_is_used_counts_as_input_and_an_idle_one_does_not(tmp_path: Path) -> None:
    said = {"list-sessions": "2 1000 me seat0\n3 1000 me\n", "show-session": GRAPHICAL.format("no")}
    assert machine(tmp_path, Clock(), said=said).input_s() == 0.0
    said["show-session"] = GRAPHICAL.format("yes")
    assert machine(tmp_path, Clock(), said=said).input_s() is None
    assert not desktop_in_use("")


def test_cpu_time_of_the_worker_itself_is_not_the_owners(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc" / "stat"

    def busy(seconds: float, stolen: float = 0.0) -> None:
        stat.write_text(f"cpu  {int(seconds * TICKS)} 0 0 99999 50 0 0 {int(stolen * TICKS)} 0 0\ncpu0 1 1\n")

    own = [0.0]
    looked = MachineState(lambda: own[0], tmp_path, tmp_path, tmp_path / "proc", clock, clock, lambda _: "")
    busy(100.0)
    assert looked.others_cpus() is None
    clock.now += 10.0
    own[0] = 15.0
    busy(120.0)
    assert looked.others_cpus() == pytest.approx(0.5)
    clock.now += 10.0
    own[0] = 0.0  # the worker has ended, and its time with it
    busy(121.0)
    assert looked.others_cpus() == pytest.approx(0.1)
    clock.now += 10.0
    busy(121.0, stolen=40.0)
    assert looked.others_cpus() == 0.0, "other guests of the host are not its owner"
    stat.write_text("rubbish")
    assert looked.others_cpus() is None


def test_programs_are_asked_now_and_then_and_not_at_each_look(tmp_path: Path) -> None:
    clock = Clock()
    asked: list[list[str]] = []

    def run(command: list[str]) -> str:
        asked.append(command)
        return ""

    looked = MachineState(lambda: 0.0, tmp_path, tmp_path, tmp_path, clock, clock, run)
    for _ in range(5):
        looked.input_s()
    assert len(asked) == 1
    clock.now += ASK_S
    looked.input_s()
    assert len(asked) == 2


def test_a_program_that_is_missing_or_fails_says_nothing() -> None:
    assert said_by(["no-such-program-here"]) == ""
    assert said_by(["false"]) == ""


@pytest.mark.parametrize("when", [When(), When(hours=(Hours(0, 60),)), When(plugged=True)])
def test_no_program_is_asked_about_what_no_condition_needs(when: When, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> str:
        asked.append(command)
        return ""

    looked = MachineState(lambda: 0.0, tmp_path, tmp_path, tmp_path, run=run)
    assert looked.observe(when).input_s is None
    assert asked == [] or sys.platform == "darwin"
    looked.observe(When(idle=True))
    assert asked != []


def test_this_machine_can_be_looked_at() -> None:
    seen = MachineState(lambda: 0.0).observe(When(idle=True, plugged=True))
    assert 0 <= seen.minute < 24 * 60
    assert seen.cpus >= 1
