"""trackio: a SQLite file per project on this machine, which `trackio show` draws.

trackio writes from a thread of its own, some tenths of a second later, so its database is asked which rows arrived:
a feeder that was killed in between hands over exactly those that did not.
"""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.config_io import public_tree
from shoal.extras import require
from shoal.files import make_directory
from shoal.rundir import RunDir
from shoal.sinks.rows import GROUPS, Row
from shoal.sinks.sink import unique_name

QUERY = "SELECT step, metrics FROM metrics WHERE run_name = ?"


class TrackioSink:
    """Rows as metrics of one run, all over one axis: a version's number is that of the step after which it was made."""

    def __init__(self, project: str, run: RunDir, folder: Path) -> None:
        require("trackio", "log.trackio")
        make_directory(folder)
        os.environ["TRACKIO_DIR"] = str(folder.resolve())  # read when trackio is imported
        import trackio

        name = unique_name(run)
        self._had = set(_rows_in(folder, name))
        self._run: Any = trackio.init(
            project=project,
            name=name,
            config=public_tree(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def has(self, row: Row) -> bool:
        return (row.group, row.number) in self._had

    def write(self, row: Row) -> None:
        self._run.log(dict(row.values), step=row.number)
        self._had.add((row.group, row.number))

    def flush(self) -> None:
        """trackio's own thread writes within a second; what is lost with this process goes again at the next start."""

    def close(self) -> None:
        self._run.finish()


def _rows_in(folder: Path, name: str) -> Iterator[tuple[str, int]]:
    """(group, number) of every row of a run in the databases of a directory."""
    for file in sorted(folder.glob("*.db")):
        with closing(sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True)) as db:
            try:
                found = db.execute(QUERY, (name,)).fetchall()
            except sqlite3.OperationalError:  # a database of something else, as of a registry
                continue
        for step, metrics in found:
            for group in {str(key).partition("/")[0] for key in json.loads(metrics)} & set(GROUPS):
                yield group, int(step)
