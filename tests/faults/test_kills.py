"""Invariant 6: every role can be killed at any time; nothing counts twice and nothing is too old."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shoal.coordinator.archive import HOME, UPLOADS
from shoal.crypto.keys import Key
from shoal.rundir import key_path, open_run
from shoal.telemetry.status import read_status
from tests.faults.checks import Checker, People, read_lineage
from tests.support.run_processes import STEPS, Runs, reward_at

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
SUPERVISOR_KILLS = 3
START_S = 60.0
CHECKPOINT_S = 120.0


def role_pids(out: Path) -> dict[str, int]:
    return {s.role: s.pid for s in read_status(out) if s.state not in ("done", "failed", "dead", "unreadable")}


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


@pytest.mark.timeout(900)
def test_a_run_whose_roles_are_killed_two_dozen_times_ends_like_one_that_was_left_alone(calm: Path, runs: Runs) -> None:
    config, out = calm.parent / "config.toml", calm.parent / "killed"
    rng = random.Random(7)
    run = runs.start(config, out)
    victims = [role for role, count in KILLS.items() for _ in range(count)] + SUPERVISOR_KILLS * ["supervisor"]
    rng.shuffle(victims)
    for victim in victims:
        # A role that is just starting is as good a target as one at work; the supervisor is killed with all roles up.
        needed = (
            {victim}
            if victim != "supervisor"
            else {"coordinator", "trainer", "validator", "worker-0", "worker-1", "origin", "relay"}
        )
        wait_for(out, needed, run)
        time.sleep(rng.uniform(0.0, 1.5))
        pids = wait_for(out, needed, run)
        if victim == "supervisor":
            run.kill()
            run.wait()
            assert gone_within(list(pids.values()), 10), "a role outlived its supervisor"
            run = runs.start(config, out)
        else:
            os.kill(pids[victim], signal.SIGKILL)
    assert run.wait(500) == 0, (calm.parent / "killed.log").read_text()[-3000:]
    used = read_lineage(out / "checkpoints")
    assert sorted(used) == list(range(STEPS)), "each step was trained exactly once in the lineage of the final weights"
    known = {name: Key.load(key_path(out, name)).address for name in ("trainer", "validator", "worker-0", "worker-1")}
    honest = frozenset([known["worker-0"], known["worker-1"]])
    people = People(known["trainer"], frozenset([known["validator"]]), honest)
    assert Checker(open_run(out), out / HOME / UPLOADS, people).faults() == []
    assert abs(reward_at(out, STEPS) - reward_at(calm, STEPS)) < 0.12


@pytest.mark.timeout(1200)
def test_ctrl_c_stops_every_role_and_the_same_command_goes_on(calm: Path, runs: Runs) -> None:
    config, out = calm.parent / "config.toml", calm.parent / "interrupted"
    run = runs.start(config, out)
    deadline = time.monotonic() + CHECKPOINT_S
    while not list((out / "checkpoints").glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = list(role_pids(out).values())
    assert len(pids) >= 3
    run.send_signal(signal.SIGINT)
    assert run.wait(30) != 0
    assert gone_within(pids, 1), "a role was left behind"
    log = (calm.parent / "interrupted.log").read_text()
    assert "stopped by SIGINT; the same command continues from the last step" in log
    assert "Traceback" not in log

    run = runs.start(config, out)
    deadline = time.monotonic() + CHECKPOINT_S
    notes = ""
    while "going on with step" not in notes and time.monotonic() < deadline:
        time.sleep(0.1)
        notes = (out / "metrics" / "trainer.jsonl").read_text()
    assert "going on with step" in notes
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) != 0
