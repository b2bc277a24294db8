"""Two validators of a real run share its files: each file is judged once, and one that is killed is not missed."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from shoal.coordinator.archive import HOME, STATE
from shoal.coordinator.db.database import Database
from shoal.coordinator.db.schema import notes, submissions
from shoal.ledger.reader import read_record
from shoal.rundir import key_path, open_run, role_key, validator_names
from shoal.telemetry.metrics import read_metrics
from shoal.telemetry.status import read_status
from tests.support.run_processes import CONFIG, Runs, own_worker_stopped
from tests.support.until import until

KILLED = "validator-1"


def verdicts(out: Path, name: str) -> list[tuple[int, int]]:
    path = out / "metrics" / f"{name}.jsonl"
    entries = read_metrics(path) if path.exists() else []
    return [(int(e["step"]), int(e["submission"])) for e in entries if e["event"] == "verdict"]


def are_ready(out: Path, *names: str) -> bool:
    """Whether these validators have started and wait for files."""
    states = {status.role: status.state for status in read_status(out)}
    return all(states.get(name) == "waiting" for name in names)


@pytest.mark.timeout(900)
def test_two_validators_share_a_runs_files_and_one_that_is_killed_is_not_missed(tmp_path: Path) -> None:
    config, out = tmp_path / "config.toml", tmp_path / "shared"
    config.write_text(CONFIG)
    changes = ["--set=steps=12", "--set=audit.count=2", "--set=eval.every=12", "--set=model.tiny.warm_steps=0"]
    with Runs(tmp_path / "cache") as runs:
        run = runs.start(config, out, *changes, "--set=workers.count=1")
        # Files are dealt by lot among the validators that are there: one that comes late might have none left.
        with own_worker_stopped(out, 240):
            until(lambda: are_ready(out, "validator-0", KILLED), 240)
        until(lambda: len(verdicts(out, KILLED)) >= 3, 240)
        (pid,) = [status.pid for status in read_status(out) if status.role == KILLED]
        os.kill(pid, signal.SIGKILL)
        assert run.wait(300) == 0, out.with_suffix(".log").read_text()[-3000:]
    names = validator_names(open_run(out).config)
    assert names == ["validator-0", KILLED]
    assert all(key_path(out, name).exists() for name in names)
    given = Counter(place for name in names for place in verdicts(out, name))
    # One that was killed between verdict and metrics leaves no line.
    assert max(given.values()) == 1
    assert all(len(verdicts(out, name)) >= 3 for name in names)
    database = Database(f"sqlite:///{out / HOME / STATE}")
    try:
        judged = {
            (row.step, row.submission): row.judge
            for row in database.ask(lambda db: db.execute(submissions.select()).all())
            if row.accept is not None
        }
        noted = database.ask(lambda db: db.execute(notes.select()).all())
    finally:
        database.close()
    assert len(judged) - len(given) in (0, 1)
    assert {(note.step, note.submission): note.judge for note in noted} == judged
    assert set(judged.values()) == {role_key(out, name).address for name in names}
    # The one that is drawn votes for what either of them accepted: no honest work is void.
    state = read_record(out).state
    assert state.finished
    outcomes = Counter(letter for batch in state.batches for letter in batch.outcomes)
    assert set(outcomes) == {"a"}, outcomes
