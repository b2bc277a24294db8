"""A database in WAL mode is read where nothing can be written, and nothing that was written is missed."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shoal.coordinator.archive import HOME, STATE
from shoal.sqlite_mode import reading_mode
from tests.support.large_run import write_large_run
from tests.support.ledgers import Court, sqlite_ledger

ENTRIES = """
import sys
from pathlib import Path
from shoal.ledger.store import read_entries
print(len(list(read_entries(Path(sys.argv[1])))))
"""
READ = """
import sys
from pathlib import Path
from shoal.coordinator.archive import sums_of
from shoal.ledger.store import read_entries
from shoal.rundir import open_run
run = Path(sys.argv[1])
print(sums_of(open_run(run))[1])
print(len(list(read_entries(run / "ledger.db"))))
"""


def on_a_read_only_mount(path: Path, *command: str) -> str:
    """What a command says for which `path` is mounted read-only: a mode without write permission does not bind root."""
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*own, "sh", "-c", mounted, str(path)], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody mount a directory read-only")
    whole = [*own, "sh", "-c", f'{mounted} && exec "$@"', str(path), *command]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_run_that_has_ended_is_read_from_a_read_only_mount(tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", steps=5, node_count=3, samples=128, answer_bytes=100)
    with closing(sqlite3.connect(run / HOME / STATE)) as database:
        database.execute("PRAGMA journal_mode = WAL")
    sqlite_ledger(run).close()
    there, entries = on_a_read_only_mount(run, sys.executable, "-c", READ, str(run)).splitlines()
    assert there == "{'accepted': 1, 'refused': 200, 'unjudged': 0}"
    assert entries == "1"


def test_what_only_the_write_ahead_log_holds_is_read_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ledger = sqlite_ledger(run)
    Court(ledger).begin()
    said = on_a_read_only_mount(run, sys.executable, "-c", ENTRIES, str(run / "ledger.db"))
    count = ledger.head.number + 1
    ledger.close()
    assert said == str(count)
    assert count > 1


def test_where_files_can_be_made_the_database_is_never_taken_for_one_that_nobody_writes(tmp_path: Path) -> None:
    assert reading_mode(tmp_path / "state.db") == "mode=ro"
