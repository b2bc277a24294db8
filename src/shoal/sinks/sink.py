"""What a logging sink is: it knows which rows it has, takes more, and says when they are safe.

Two kinds of sinks remember differently. TensorBoard's and trackio's files are on this machine, so they are asked what
they have, and a feeder that was killed at any moment goes on without a gap or a double point. Weights & Biases may be
on another continent: rows are noted in a file of ours before they are handed over, so that a feeder that is killed in
between loses one row and doubles none.
"""

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from shoal.files import disk_errors, make_directory
from shoal.rundir import RunDir, created_at
from shoal.sinks.rows import Row


class Sink(Protocol):
    """One place where rows go. Its methods may block or raise as they like: they run in a process of their own."""

    def has(self, row: Row) -> bool:
        """Whether the sink has this row already."""

    def write(self, row: Row) -> None:
        """Hands a row over."""

    def flush(self) -> None:
        """Returns when all rows so far outlive this process, as far as the sink can promise that."""

    def close(self) -> None:
        """Hands over what is left, and lets go."""


def run_id(run: RunDir) -> str:
    """The same for a run whenever it is fed, and another one for every other run."""
    made = f"{run.config.name} {created_at(run.path)!r} {run.config.seed}"
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def unique_name(run: RunDir) -> str:
    """A run's name where runs of the same name may be its neighbours."""
    return f"{run.config.name}-{run_id(run)[:8]}"


class Journal:
    """Rows that were handed over, one line each, written before the row goes."""

    def __init__(self, path: Path) -> None:
        make_directory(path.parent)
        with disk_errors(path):
            self._file = path.open("a+b", buffering=0)
            self._file.seek(0)
            lines = self._file.read().split(b"\n")
            if torn := lines.pop():  # a killed writer's last line: its row was never handed over
                self._file.truncate(self._file.seek(0, os.SEEK_END) - len(torn))
        self._noted = {line.decode(errors="replace") for line in lines}
        self._path = path

    def has(self, row: Row) -> bool:
        return _name(row) in self._noted

    def note(self, row: Row) -> None:
        with disk_errors(self._path):
            self._file.write(f"{_name(row)}\n".encode())
        self._noted.add(_name(row))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()


def _name(row: Row) -> str:
    return f"{row.group} {row.number}"
