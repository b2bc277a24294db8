"""State of a lent machine in files: what was agreed (`settings.json`), what its owner wants (`control.json`), and what
is done (`status.json`). Each is replaced whole, so that neither a reader nor a kill sees half of one.

The supervisor holds a lock for as long as it lives; a status without that lock is of one that has ended.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from shoal.client.identity import default_home
from shoal.errors import ConfigError, StorageError
from shoal.files import locked, read_regular, write_whole
from shoal.lend.when import parse_when
from shoal.limits import NO_LIMITS, MachineLimits
from shoal.rundir import check_worker_name

MAX_BYTES = 1 << 16
MAX_LOG = 5_000_000
Want = Literal["work", "pause", "finish", "stop"]
LendState = Literal["starting", "working", "finishing", "paused", "waiting", "retrying", "stopped", "ended"]
M = TypeVar("M", bound=BaseModel)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(_File):
    """What a machine is lent for, and on which conditions."""

    join: str
    when: tuple[str, ...] = ()
    limits: MachineLimits = NO_LIMITS
    worker: tuple[str, ...] = ()
    """More flags of `shoal worker`."""
    key: str | None = None


class Control(_File):
    """What the owner wants."""

    want: Want = "work"


class LendStatus(_File):
    """What the supervisor does, and why. Times are Unix seconds, sizes bytes."""

    state: LendState
    reason: str = ""
    since: float
    pid: int
    worker: int | None = None
    """Process of the worker, if there is one."""
    doing: str = ""
    memory: int = 0
    peak_memory: int = 0
    disk: int = 0
    handed_back: int = 0
    """Leases that were handed back since the supervisor began."""
    note: str = ""
    """What is wrong and does not keep it from working."""


class LendFolder:
    """The files of one lent worker; a machine with several devices has one per device."""

    def __init__(self, name: str = "worker", home: Path | None = None) -> None:
        check_worker_name(name)
        self.name = name
        self.path = (home or default_home()) / "lend" / name

    @property
    def log(self) -> Path:
        return self.path / "worker.log"

    def bound_log(self) -> None:
        """Moves the end of a long `worker.log` to `worker.log.1`, and empties it.

        A worker that runs goes on at the beginning of the same file; what it prints within this moment may be lost.
        """
        with suppress(OSError):
            if self.log.stat().st_size <= MAX_LOG:
                return
            with self.log.open("r+b") as file:
                file.seek(-MAX_LOG, os.SEEK_END)
                with suppress(StorageError):  # on a full disk too, the log is not to grow
                    write_whole(self.log.with_suffix(".log.1"), file.read(MAX_LOG))
                file.truncate(0)

    @property
    def own_log(self) -> Path:
        return self.path / "lend.log"

    def files_of(self, join: str) -> Path:
        """Where the worker keeps what it fetches of a run."""
        return self.path / "files" / hashlib.sha256(join.encode()).hexdigest()[:16]

    def settings(self) -> Settings:
        path = self.path / "settings.json"
        try:
            settings = _read(path, Settings)
            parse_when(settings.when)
            return settings
        except FileNotFoundError:
            raise ConfigError(
                f"lend {self.name}: this machine was not lent yet; begin with shoal lend start URL"
            ) from None

    def write_settings(self, settings: Settings) -> None:
        self._write("settings.json", settings)

    def control(self) -> Control:
        """What the owner wants; a file that cannot be read means a pause: a machine must not compute against its
        owner's will because a file is damaged."""
        try:
            return _read(self.path / "control.json", Control)
        except FileNotFoundError:
            return Control()

    def write_control(self, want: Want) -> None:
        self._write("control.json", Control(want=want))

    def status(self) -> LendStatus | None:
        """What the supervisor last said of itself; None if nothing, or nothing that can be read."""
        try:
            return _read(self.path / "status.json", LendStatus)
        except (FileNotFoundError, ConfigError):
            return None

    def write_status(self, status: LendStatus) -> None:
        self._write("status.json", status)

    def _write(self, name: str, content: BaseModel) -> None:
        write_whole(self.path / name, content.model_dump_json(indent=1).encode() + b"\n", private=True)

    @contextmanager
    def held(self, wait_s: float = 0.0) -> Iterator[None]:
        """The supervisor's lock; an error that names the one that has it."""
        known = self.status()
        whose = f" (process {known.pid}, {known.state})" if known else ""
        refusal = (
            f"lend {self.name}: this machine is lent already{whose}; use shoal lend limits, pause, resume or finish; "
            "for another device give --name"
        )
        with locked(self.path / "lock", refusal, wait_s):
            yield

    def is_running(self) -> bool:
        """Whether a supervisor is alive."""
        try:
            with (self.path / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise StorageError(f"{self.path / 'lock'}: cannot be read ({error.strerror})") from error
        return False


def _read(path: Path, form: type[M]) -> M:
    try:
        return form.model_validate_json(read_regular(path, MAX_BYTES))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the whole file"
        raise ConfigError(
            f"{path}: {where}: {fault['msg']}; shoal lend start, resume or limits write it again"
        ) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); remove it, and give the command again"
        ) from error
