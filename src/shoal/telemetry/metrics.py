"""Metrics as JSON lines: one file per role, readable while it is written.

A line goes to the file in a single append, so a SIGKILL can tear only the line being written. A writer that finds a
torn end begins with a newline: the successor of a killed writer loses that one line and no other. A run that goes on
after a kill may do a step again; the later entry is the true one.
"""

import json
import math
import numbers
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.errors import StorageError
from shoal.files import parse_json

Entry = dict[str, Any]


class MetricsWriter:
    """Appends entries to one file; what it has written survives any later kill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(f"{path}: metrics cannot be written: {error.strerror}") from error
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def write(self, event: str, /, **values: object) -> None:
        """Appends one entry, stamped with the time. NaN and infinities become null, for they are not JSON."""
        entry = {"time": time.time(), "event": event, **values}
        line = json.dumps(_plain(entry), allow_nan=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise StorageError(
                f"{self._path}: a metrics line could not be written: {error.strerror}; free space and run again"
            ) from error
        self._torn = written < len(line)
        if self._torn:
            raise StorageError(
                f"{self._path}: only {written} of {len(line)} bytes of a metrics line were written: "
                "the disk is full; free space and run again"
            )

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _plain(value: object) -> object:
    """The same value in the types JSON has; numpy's scalars become Python's."""
    match value:
        case bool() | str() | None:
            return value
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value) if math.isfinite(value) else None
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            raise TypeError(f"metrics hold numbers, text, lists and dicts, not {type(value).__name__}: {value!r}")


def _parse(line: bytes) -> Entry | None:
    try:
        entry = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None


def read_metrics(path: Path) -> Iterator[Entry]:
    """Yields the whole entries of a file in the order they were written; a file not there yet has none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if (entry := _parse(line)) is not None:
                yield entry


def read_steps(path: Path, event: str, key: str = "step") -> list[Entry]:
    """The entries of one event, one for each value of `key`, in its order: the last one written counts."""
    latest = {
        entry[key]: entry for entry in read_metrics(path) if entry["event"] == event and isinstance(entry.get(key), int)
    }
    return [latest[value] for value in sorted(latest)]


def number(entry: Entry, key: str) -> float | None:
    """The value as a finite float; None if it is absent, null or not a number."""
    value = entry.get(key)
    try:
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that no float can hold
        pass
    return None


class Tail:
    """Follows a file as it grows. A last line without its newline is left until it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[Entry]:
        """The entries appended since the last call."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:  # the file was replaced by a shorter one
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [entry for line in data[:whole].splitlines() if (entry := _parse(line)) is not None]
