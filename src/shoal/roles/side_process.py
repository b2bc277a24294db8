"""A process beside the roles of a run that nothing waits for: started again some times when it ends, then given up."""

import time
from collections.abc import Sequence
from pathlib import Path

from shoal.priority import give_way
from shoal.process import Child, stop_all

MAX_RESTARTS = 3
WINDOW_S = 600.0


class SideProcess:
    """Whatever becomes of it, the run goes on; `look` says in a sentence when it goes on without it."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, what: str) -> None:
        """`what` is how people call it, as in "the page"."""
        self.name = name
        self.arguments = list(arguments)
        self._log, self._what = log, what
        self._ends: list[float] = []
        self.child: Child | None = None

    def start(self) -> None:
        self.child = Child(self.name, self.arguments, 1, self._log, is_service=True)
        give_way(self.child.process.pid)  # from the first import on, which takes seconds of CPU

    def look(self) -> str | None:
        """Starts a process that ended again, some times; a sentence if something is to be told. Never blocks."""
        if self.child is None or (code := self.child.poll()) is None:
            return None
        now = time.monotonic()
        self._ends = [*(at for at in self._ends if now - at < WINDOW_S), now]
        if len(self._ends) > MAX_RESTARTS:
            why = self.child.last_words().strip()
            self.close()
            said = f", {why}" if why else ""
            return (
                f"{self._what} ended {len(self._ends)} times, with code {code}{said}: see {self._log}; "
                "the run goes on without it"
            )
        self.child.restart()
        give_way(self.child.process.pid)
        return None

    def close(self) -> None:
        if self.child is not None:
            stop_all([self.child])
            self.child = None
