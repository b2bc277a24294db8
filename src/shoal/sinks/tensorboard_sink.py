"""TensorBoard event files: one record per row, so that a killed writer leaves whole rows or none.

Only the files themselves are asked which rows they have. Every writer begins a file of its own, so the torn end of a
killed one hides nothing that came later.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.extras import require
from shoal.files import disk_errors, make_directory
from shoal.sinks.rows import GROUPS, Row

EVENT_FILES = "*tfevents*"
FLUSH_S = 120


class TensorBoardSink:
    """Rows as scalars in a directory that `tensorboard --logdir` opens."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "log.tensorboard")
        make_directory(folder)
        self._had = set(_rows_in(folder))
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._folder = folder
        with disk_errors(folder):
            self._writer: Any = EventFileWriter(str(folder), flush_secs=FLUSH_S)

    def has(self, row: Row) -> bool:
        return (row.group, row.number) in self._had

    def write(self, row: Row) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
        event = self._event(wall_time=row.time, step=row.number, summary=self._summary(value=scalars))
        with disk_errors(self._folder):
            self._writer.add_event(event)
        self._had.add((row.group, row.number))

    def flush(self) -> None:
        with disk_errors(self._folder):
            self._writer.flush()

    def close(self) -> None:
        with disk_errors(self._folder):
            self._writer.close()


def _rows_in(folder: Path) -> Iterator[tuple[str, int]]:
    """(group, number) of every row in the event files of a directory."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for file in sorted(folder.glob(EVENT_FILES)):
        for record in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(record)
            for value in event.summary.value:
                group = value.tag.partition("/")[0]
                if group in GROUPS:
                    yield group, event.step
