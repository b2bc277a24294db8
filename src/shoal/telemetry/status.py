"""Status files: what each role is doing now, whom it waits for, and until when.

Every role keeps one small file, replaced whole at each change, so a reader never sees half a status. A killed role
cannot write its own end: a reader finds that nobody holds the role's lock and calls it dead. (Its process number proves
nothing: another process may have it by now.) Of a role that ended because it was asked to, who asked it writes that.
"""

import fcntl
import functools
import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.errors import StorageError
from shoal.files import make_directory

if TYPE_CHECKING:
    from pydantic import TypeAdapter

State = Literal["starting", "working", "waiting", "done", "stopped", "failed", "dead", "unreadable"]

ENDED: frozenset[State] = frozenset({"done", "stopped", "failed", "dead", "unreadable"})
BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One role at one moment. Times are Unix seconds; `since` is when it entered this state."""

    role: str
    pid: int
    state: State
    doing: str
    on: str
    since: float
    deadline: float | None
    beat: float


class StatusFile:
    """A role's own status, written when it changes and at most once a second when it does not.

    It also keeps the account of how much time went into waiting, and for whom.
    """

    def __init__(self, path: Path, role: str) -> None:
        now = time.time()
        self._path = path
        self._status = RoleStatus(role, os.getpid(), "starting", "", "", now, None, now)
        self._waited: dict[str, float] = {}
        self._lock = threading.RLock()  # a thread of the role may have to wait for the coordinator
        self._counted_to = self._counted_from = time.monotonic()
        make_directory(path.parent)  # once: a run that was removed is not to come back in parts
        self._write()

    @property
    def now(self) -> RoleStatus:
        return self._status

    def working(self, doing: str) -> None:
        self._set("working", doing)

    def waiting(self, doing: str, on: str, timeout_s: float | None) -> None:
        """Waits for `on`, and gives up `timeout_s` from now.

        A loop that polls may say the same again and again: the same wait keeps its first deadline. Another `doing` is
        progress, and sets a new deadline.
        """
        self._set("waiting", doing, on, timeout_s)

    def done(self, text: str) -> None:
        self._set("done", text)

    def failed(self, text: str) -> None:
        """Says why the role ends. A disk that refuses this must not hide the reason itself."""
        with suppress(StorageError):
            self._set("failed", text)

    def shares(self) -> dict[str, float | dict[str, float]]:
        """The share of wall time spent waiting since the last call, in all and by whom was waited for."""
        with self._lock:
            self._account()
            wall = self._counted_to - self._counted_from
            waits = {on: seconds / wall for on, seconds in self._waited.items()} if wall > 0 else {}
            self._waited = {}
            self._counted_from = self._counted_to
        return {"wait_share": sum(waits.values()), "waits": waits}

    def _set(self, state: State, doing: str, on: str = "", timeout_s: float | None = None) -> None:
        with self._lock:
            self._account()
            now, last = time.time(), self._status
            if (state, doing, on) == (last.state, last.doing, last.on):
                if now - last.beat < BEAT_S:
                    return
                self._status = replace(last, beat=now)
            else:
                since = last.since if (state, on) == (last.state, last.on) else now
                deadline = None if timeout_s is None else now + timeout_s
                self._status = RoleStatus(last.role, last.pid, state, doing, on, since, deadline, now)
            self._write()

    def _account(self) -> None:
        now = time.monotonic()
        if self._status.state == "waiting":
            on = self._status.on or "other"
            self._waited[on] = self._waited.get(on, 0.0) + now - self._counted_to
        self._counted_to = now

    def _write(self) -> None:
        _write(self._path, self._status)


def _write(path: Path, status: RoleStatus) -> None:
    half = path.with_name(path.name + ".tmp")
    try:
        half.write_text(json.dumps(asdict(status)))
        half.replace(path)
    except OSError as error:
        raise StorageError(
            f"{path}: status could not be written: {error.strerror}; free space and run again"
        ) from error


def note_stopped(run_dir: Path, role: str) -> None:
    """Says of a role that was asked to end, and did, that it was stopped, unless it said itself how it ended."""
    path = run_dir / "status" / f"{role}.json"
    status = _read(path)
    if status.state == "dead":
        with suppress(StorageError):  # as with `failed`
            _write(path, replace(status, state="stopped", on="", since=time.time(), deadline=None))


def read_status(run_dir: Path) -> list[RoleStatus]:
    """Every role of a run: the trainer, the workers in their order, then the rest.

    A role that let go of its lock without "done", "stopped" or "failed" is "dead". A file that is not a status is
    reported as "unreadable", for a role that seems absent would be worse.
    """
    statuses = [_read(path) for path in run_dir.glob("status/*.json")]
    return sorted(statuses, key=lambda status: role_order(status.role))


def _read(path: Path) -> RoleStatus:
    try:
        status = _schema().validate_json(path.read_bytes())
    except (ValueError, OSError):
        return RoleStatus(path.stem, 0, "unreadable", f"{path} is not a status file", "", 0.0, None, 0.0)
    if status.state not in ENDED and not _held(path.parent.parent / "locks" / path.stem):
        return replace(status, state="dead")
    return status


@functools.cache
def _schema() -> "TypeAdapter[RoleStatus]":
    from pydantic import TypeAdapter

    return TypeAdapter(RoleStatus)


def _held(lock: Path) -> bool:
    """Whether some process holds the lock; the system lets it go when that process ends, however it ends."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was never taken
        return False
    return False


def role_order(role: str) -> tuple[int, str, int]:
    """Sorts the trainer first, then the workers by their numbers, then the others by name."""
    kind, _, index = role.rpartition("-")
    if not index.isdecimal():
        kind, index = role, "0"
    return {"trainer": 0, "worker": 1}.get(kind, 2), kind, int(index)


def waits(statuses: Sequence[RoleStatus], now: float) -> list[str]:
    """For each waiting role: on whom, for what, how long already and how much longer: one sentence per waiting role."""
    return [_sentence(status, statuses, now) for status in statuses if status.state == "waiting"]


def _sentence(status: RoleStatus, statuses: Sequence[RoleStatus], now: float) -> str:
    on = f" on {', '.join(_awaited(status.on, statuses))}" if status.on else ""
    clock = seconds(now - status.since)
    if status.deadline is not None:
        left = status.deadline - now
        clock += f", gives up in {seconds(left)}" if left >= 0 else f", was to give up {seconds(-left)} ago"
    return f"{status.role} waits{on}: {status.doing} ({clock})"


def _awaited(on: str, statuses: Sequence[RoleStatus]) -> list[str]:
    """The roles that are meant: "worker" means all workers. One that can no longer answer is said to be so."""
    meant = [other for other in statuses if other.role == on or other.role.startswith(on + "-")]
    names = [f"{other.role} ({other.state})" if other.state in ENDED else other.role for other in meant]
    return names or [f"{on} (not started)"]


def seconds(value: float) -> str:
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 1000 else f"{value / 60:.0f} min"
