"""What a benchmark is doing, on stderr: one line that changes on a terminal, one line per stage elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.text import Text

# Off a terminal, details within a stage are written no more often than this.
DETAIL_S = 10.0


class Progress:
    """A stage says what is being measured; a detail says how far it is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("")
        self._stage = ""
        self._began = self._written = time.monotonic()

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def stage(self, text: str) -> None:
        self._stage = text
        self._status.update(Text(text))
        self._write(text)

    def detail(self, text: str) -> None:
        self._status.update(Text(f"{self._stage}: {text}"))
        if time.monotonic() - self._written >= DETAIL_S:
            self._write(f"{self._stage}: {text}")

    def done(self, text: str) -> None:
        """What is finished: always written, unlike a detail."""
        self._status.update(Text(f"{self._stage}: {text}"))
        self._write(f"{self._stage}: {text}")

    @contextmanager
    def aside(self) -> Iterator[Console]:
        """The console for someone who shows progress of their own: only one can draw at a time."""
        self._status.stop()
        yield self.console
        self._status.start()

    def _write(self, text: str) -> None:
        self._written = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"{self._written - self._began:5.0f} s  {text}", markup=False, highlight=False)
