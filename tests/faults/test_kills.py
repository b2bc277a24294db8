"""Invariant 6: every role can be killed at any time; nothing counts twice and nothing is too old.

One run suffers everything: roles and supervisor are killed, Ctrl-C stops it, and the same command goes on each time.
"""

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.coordinator.archive import HOME, UPLOADS
from shoal.crypto.keys import Key
from shoal.rundir import key_path, open_run
from shoal.telemetry.metrics import read_steps
from shoal.telemetry.status import ENDED, read_status
from shoal.watch.history import History
from tests.faults.checks import Checker, People, read_lineage
from tests.support.run_processes import STEPS, Runs, reward_at
from tests.support.until import until

# There are two workers.
KILLS = {
    "coordinator": 2,
    "trainer": 5,
    "validator": 3,
    "worker-0": 4,
    "worker-1": 4,
    "evaluator": 1,
    "origin": 2,
    "relay": 2,
}
SUPERVISOR_ENDS = [signal.SIGKILL, signal.SIGKILL, signal.SIGINT]
WITH_SUPERVISOR = {"coordinator", "trainer", "validator", "worker-0", "worker-1", "origin", "relay"}
PAUSE_S = 0.75
# They are spread over the first steps of the run, so that it is disturbed at every stage of its life.
DISTURBED_STEPS = STEPS * 3 // 4
STEP_S = 300.0
START_S = 300.0
CHECKPOINT_S = 300.0
GONE_S = 60.0


def role_pids(out: Path) -> dict[str, int]:
    return {s.role: s.pid for s in read_status(out) if s.state not in ENDED}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(out: Path, roles: set[str], run: subprocess.Popen[bytes]) -> dict[str, int]:
    deadline = time.monotonic() + START_S
    while not roles <= (pids := role_pids(out)).keys() or not all(alive(pid) for pid in pids.values()):
        assert run.poll() is None, "the run ended before it was killed often enough"
        assert time.monotonic() < deadline, f"{roles} did not come up; there are {pids}"
        time.sleep(0.05)
    return pids


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


@dataclass(frozen=True)
class Interrupted:
    """What a run did when Ctrl-C stopped it, once there was a checkpoint to go on from."""

    code: int
    left_behind: bool
    said: str


def interrupt(run: subprocess.Popen[bytes], out: Path) -> Interrupted:
    until(lambda: list((out / "checkpoints").glob("step-*")), CHECKPOINT_S)
    log, pids = out.with_suffix(".log"), list(role_pids(out).values())
    had = log.stat().st_size
    assert len(pids) >= 3
    run.send_signal(signal.SIGINT)
    return Interrupted(run.wait(START_S), not gone_within(pids, GONE_S), log.read_bytes()[had:].decode())


def has_gone_on(notes: Path, had: int) -> bool:
    """Whether a trainer went on from a checkpoint since its notes were `had` bytes long."""
    return b"going on with step" in notes.read_bytes()[had:]


def has_trained(out: Path, steps: int) -> bool:
    notes = out / "metrics" / "trainer.jsonl"
    return not steps or any(int(entry["step"]) + 1 >= steps for entry in read_steps(notes, "step"))


@pytest.fixture(scope="module")
def killed(calm: Path) -> tuple[Path, Interrupted]:
    """The directory of a run that was disturbed in every way and came to its end, and what Ctrl-C did meanwhile."""
    config, out = calm.parent / "config.toml", calm.parent / "killed"
    notes = out / "metrics" / "trainer.jsonl"
    rng = random.Random(7)
    victims: list[str | signal.Signals] = [role for role, count in KILLS.items() for _ in range(count)]
    victims += SUPERVISOR_ENDS
    rng.shuffle(victims)
    with Runs(calm.parent / "cache") as runs:
        run = runs.start(config, out)
        for number, victim in enumerate(victims):
            until(partial(has_trained, out, number * DISTURBED_STEPS // len(victims)), STEP_S)
            # A role that is just starting is as good a target as one at work; the supervisor ends with all roles up.
            needed = {victim} if isinstance(victim, str) else WITH_SUPERVISOR
            wait_for(out, needed, run)
            time.sleep(rng.uniform(0.0, PAUSE_S))
            pids = wait_for(out, needed, run)
            if isinstance(victim, str):
                os.kill(pids[victim], signal.SIGKILL)
            elif victim == signal.SIGINT:
                interrupted = interrupt(run, out)
                had = notes.stat().st_size
                run = runs.start(config, out)
                until(partial(has_gone_on, notes, had), CHECKPOINT_S)
            else:
                run.kill()
                run.wait()
                assert gone_within(list(pids.values()), GONE_S), "a role outlived its supervisor"
                run = runs.start(config, out)
        assert run.wait(500) == 0, out.with_suffix(".log").read_text()[-3000:]
    return out, interrupted


@pytest.mark.timeout(1800)
def test_a_run_whose_roles_are_killed_two_dozen_times_ends_like_one_that_was_left_alone(
    calm: Path, killed: tuple[Path, Interrupted]
) -> None:
    out, _ = killed
    used = read_lineage(out / "checkpoints")
    assert sorted(used) == list(range(STEPS)), "each step was trained exactly once in the lineage of the final weights"
    known = {name: Key.load(key_path(out, name)).address for name in ("trainer", "validator", "worker-0", "worker-1")}
    honest = frozenset([known["worker-0"], known["worker-1"]])
    people = People(known["trainer"], frozenset([known["validator"]]), honest)
    assert Checker(open_run(out), out / HOME / UPLOADS, people).faults() == []
    assert abs(reward_at(out, STEPS) - reward_at(calm, STEPS)) < 0.12


@pytest.mark.timeout(1800)
def test_ctrl_c_stops_every_role_and_the_same_command_goes_on(killed: tuple[Path, Interrupted]) -> None:
    """The fixture waits until it went on from a checkpoint."""
    _, interrupted = killed
    assert interrupted.code != 0
    assert not interrupted.left_behind
    assert "stopped by SIGINT; the same command continues from the last step" in interrupted.said
    assert "Traceback" not in interrupted.said


def test_the_compute_of_a_run_is_read_off_its_own_files(calm: Path) -> None:
    history = History(calm)
    history.refresh()
    total = history.compute.total
    assert all(history.compute.steps[step].train > 0 for step in range(STEPS))
    # Without KL term a step is worth three passes of the blocks and four of the head over what was generated for it.
    assert total.generate >= total.train / 4
    assert total.validate > 0
    version = sum(file.stat().st_size for file in (calm / "weights" / f"v{STEPS:06d}").glob("*.safetensors"))
    assert total.broadcast > version
    assert total.uploaded > 0
    assert total.rate("train") is not None
    assert total.rate("generate") is not None
