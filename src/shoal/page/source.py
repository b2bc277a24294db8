"""A run's files as pages read them: incrementally, read-only, and without a lock that a role could wait for.

`refresh` is called by one thread. It remembers how far each file was read, and counts a revision up whenever pages
would show something else, so that documents are made once per revision, however many people look.
"""

import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError
from shoal.page.ledger import LedgerFollower
from shoal.page.privacy import public_text
from shoal.rundir import RunDir, open_run
from shoal.telemetry.metrics import number
from shoal.telemetry.status import RoleStatus, read_status
from shoal.watch.history import HIDDEN_ROLES, History, note_of, run_directory

LOG = logging.getLogger(__name__)
NO_CONFIG = "no usable run.json of this release is here; the log of the page's server says more"
NOTES_KEPT = 40
RECORDS = ("coordinator/state.db", "coordinator/state.db-wal")
# Status files are written once per second by every role; looking more often would show nothing new.
STATUS_S = 1.0
# How often a page that shows the coordinator's records is told to look again.
RECORDS_S = 2.0
# Heard so recently, a node's speed counts for the swarm's.
RECENT_S = 120.0


@dataclass(slots=True)
class Revision:
    """Counts changes: of steps and evaluations, of what roles do, and of the coordinator's records."""

    steps: int = 0
    roles: int = 0
    records: int = 0


@dataclass(slots=True)
class Waits:
    """The share of time that workers waited, added up per step."""

    total: float = 0.0
    count: int = 0


@dataclass(slots=True)
class RunFiles:
    """Everything that pages know of a run."""

    path: Path
    history: History
    run: RunDir | None
    """None where run.json is missing or of another release; `refused` then says why."""
    refused: str
    ledger: LedgerFollower
    statuses: list[RoleStatus] = field(default_factory=list)
    notes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    waits: dict[int, Waits] = field(default_factory=dict)
    step_times: list[float] = field(default_factory=list)
    started: float | None = None
    revision: Revision = field(default_factory=Revision)
    _status_at: float = 0.0
    _records_at: float = 0.0
    _records: object = None
    _quiet_at: float = math.inf
    """When no node can have been heard lately any more, though nothing was written since."""

    @classmethod
    def open(cls, path: Path) -> "RunFiles":
        path = run_directory(path).resolve()  # of whole paths, `public_text` leaves the last part alone
        run, refused = None, ""
        try:
            run = open_run(path)
        except ConfigError as error:
            LOG.warning("%s", error)  # it may quote settings that no page shows
            refused = NO_CONFIG
        files = cls(path, History(path), run, refused, LedgerFollower(path))
        files.refresh()
        return files

    @property
    def name(self) -> str:
        return self.run.config.name if self.run else self.history.name

    def refresh(self) -> None:
        """Reads what was written since the last time."""
        now = time.monotonic()
        if self._read_metrics():
            self.revision.steps += 1
        if now - self._status_at >= STATUS_S or not self._status_at:
            self._status_at = now
            found = [status for status in read_status(self.path) if status.role not in HIDDEN_ROLES]
            if _gist(found) != _gist(self.statuses):
                self.revision.roles += 1
            self.statuses = found
        if now - self._records_at >= RECORDS_S or not self._records_at:
            self._records_at = now
            seen = self._look()
            if seen != self._records or now >= self._quiet_at:
                self.revision.records += 1
                self._quiet_at = now + RECENT_S if seen != self._records else math.inf
            self._records = seen
        if self.ledger.refresh():
            self.revision.records += 1

    def _read_metrics(self) -> bool:
        changed = False
        for role, entry in self.history.refresh():
            when = number(entry, "time") or 0.0
            match entry:
                case {"event": "step"}:
                    self.step_times.append(when)
                    changed = True
                case {"event": "eval" | "suite" | "latency"}:
                    changed = True
                case {"event": "start"} if role == "supervisor":
                    self.started = when
                    self.step_times.clear()  # a pause between two sessions says nothing about the pace
                    changed = True
                case {"event": "submission", "step": int(step)} if role not in HIDDEN_ROLES:
                    if (share := number(entry, "wait_share")) is not None:
                        waits = self.waits.setdefault(step, Waits())
                        waits.total, waits.count = waits.total + share, waits.count + 1
            text = note_of(role, entry)
            of_whom = role, entry.get("role")  # a restart is told by the supervisor
            if text is not None and not any(one in HIDDEN_ROLES for one in of_whom):
                self.notes.append((when, public_text(text)))
                changed = True
        return changed

    def _look(self) -> object:
        """What tells whether the coordinator wrote anything; a database elsewhere is asked again each time."""
        if self.run is not None and self.run.config.swarm.database:
            return time.monotonic()
        found = []
        for name in RECORDS:
            try:
                stat = (self.path / name).stat()
                found.append((stat.st_size, stat.st_mtime_ns))
            except OSError:
                found.append((0, 0))
        return tuple(found)


def _gist(statuses: list[RoleStatus]) -> list[tuple[str, ...]]:
    """What of a status is news; a heartbeat is not."""
    return [(status.role, status.state, status.doing, status.on) for status in statuses]
