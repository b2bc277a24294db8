"""Supervisor of a lent machine: keeps one worker as its child while the owner and the conditions allow it.

A pause kills the worker: memory, GPU and line are free in the same moment, whatever the engine does just then. Its
leases are then handed back in its name. A worker that was merely stopped (SIGSTOP) would keep its memory, and its
leases until they expire; one that was asked to end would first finish a step of the engine. What is lost is the answers
under way; a resumed worker starts from the files it has. `finish` takes as long as the leases do, and loses nothing
unless the worker fails or must be ended meanwhile.

The child ends with the supervisor, however that ends. A supervisor that is started again after a kill finds its state
in files, and the worker gets back the leases it held.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.client.client import CoordinatorClient
from shoal.client.identity import default_key
from shoal.client.known_coordinators import trusted
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, ShoalError, StorageError
from shoal.files import remove, tree_bytes
from shoal.lend.decisions import HAND_BACK_AFTER, Next, after_end, decide, retry_after_s
from shoal.lend.machine_state import MachineState
from shoal.lend.owner_watch import OwnerWatch
from shoal.lend.process_tree import Usage, scope_command, usage_of
from shoal.lend.state_files import LendFolder, LendStatus, Settings, Want
from shoal.lend.when import parse_when
from shoal.limits import show_size
from shoal.priority import give_way
from shoal.process import Child, tree_of
from shoal.protocol.refusal import Refusal
from shoal.roles.finish_signal import FINISH, held_back
from shoal.rundir import RUN_FILE
from shoal.telemetry.status import read_status

POLL_S = 0.1  # a pause is heard within this time, and memory is looked at so often
LOOK_S = 1.0  # at the owner, the power supply, the disk
TELL_S = 5.0  # status is written at least so often
HAND_BACK_S = 10.0
HAND_BACK_RETRY_S = 30.0


class Supervisor:
    """One lent worker. `turn` looks once and acts; `run` does so until it is over."""

    def __init__(self, folder: LendFolder, machine: MachineState | None = None) -> None:
        self.folder = folder
        self.settings = folder.settings()
        self.owner = OwnerWatch(machine or MachineState(lambda: self.usage.cpu_s))
        self.child: Child | None = None
        self.usage = Usage()
        self.stop = threading.Event()
        self._started_with: Settings | None = None
        self._asked_to_finish = self._handed_in = False
        self._want: Want = "work"
        self._control_seen: object = None
        self._halted = self._failure = self._blocked = ""
        self._complete = False
        self._end = Next("exit", "ended", "the supervisor failed")
        self._failures = 0
        self._retry_at = self._look_at = self._tell_at = self._hand_back_at = float("-inf")
        self._holds_leases = True  # a supervisor before this one may have been killed
        self._handed_back = self._peak = self._disk = 0
        self._notes: dict[str, str] = {}
        self._status: LendStatus | None = None
        self._told: tuple[object, ...] = ()

    def run(self) -> str:
        """Works until the run is complete, or its owner ends it; says why it ended."""
        try:
            while True:
                found = self.turn()
                if found.act == "exit":
                    self._end = found
                    return found.reason
                self.stop.wait(POLL_S)
        finally:
            self._end_child()
            self._hand_back()
            self._tell(self._end)

    def turn(self) -> Next:
        """Looks at everything once, and does what follows."""
        now = time.monotonic()
        want = self._wanted()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()
        if self.child is not None:
            self._watch()
        if self._complete:
            return Next("exit", "ended", "the run is complete")
        found = decide(
            want,
            self._blocked,
            self._halted,
            running=self.child is not None,
            retry_in_s=self._retry_at - time.monotonic(),
            failure=self._failure,
            renew=self._started_with is not None and self._started_with != self.settings,
            handed_in=self._handed_in,
        )
        self._do(found)
        self._tell(found)
        return found

    def _wanted(self) -> Want:
        """What the owner wants; a new wish ends a halt, because it may have removed the cause."""
        if self.stop.is_set():
            return "stop"
        path = self.folder.path / "control.json"
        seen = _version(path)
        if seen != self._control_seen:
            if self._control_seen is not None:
                self._halted, self._retry_at = "", float("-inf")
            self._control_seen = seen
            self._notes.pop("control", None)
            try:
                self._want = self.folder.control().want
            except ConfigError as error:
                self._want, self._notes["control"] = "pause", f"paused, because {error}"
        return self._want

    def _look(self) -> None:
        """Conditions, settings and disk: what changes slowly."""
        self._notes.pop("settings", None)
        try:
            settings = self.folder.settings()
        except ConfigError as error:
            settings, self._notes["settings"] = self.settings, f"goes on with the settings before: {error}"
        if settings != self.settings:
            self.settings, self._halted = settings, ""
        self._blocked = self.owner.why_not(parse_when(settings.when))
        self._disk = tree_bytes(self.folder.files_of(settings.join))
        self.folder.bound_log()
        if not self._holds_leases or self.child is not None:
            return
        if (self._blocked or self._want == "pause" or self._halted) and time.monotonic() >= self._hand_back_at:
            self._hand_back()

    def _watch(self) -> None:
        """Notices the end of the worker, and ends one that uses more than it may."""
        assert self.child is not None
        code = self.child.poll()
        if code is not None:
            self._after_end(code)
            return
        self.usage = usage_of(self.child.process.pid)
        self._peak = max(self._peak, self.usage.memory)
        bounds = self.settings.limits
        over = ""
        if bounds.memory is not None and self.usage.memory > bounds.memory:
            over = f"--memory {show_size(bounds.memory)}: the worker used {show_size(self.usage.memory)}"
        elif bounds.disk is not None and self._disk > bounds.disk:
            over = f"--disk {show_size(bounds.disk)}: the worker's files take {show_size(self._disk)}"
        if over:
            self._end_child()
            self._halted = f"{over}, and was ended; raise it with shoal lend limits, or give a smaller --batch at start"
            self._hand_back()

    def _after_end(self, code: int) -> None:
        assert self.child is not None
        ended = after_end(code, self.child.last_words(), self._asked_to_finish)
        self._handed_in = self._asked_to_finish and not ended.failure
        self.child.close()
        self.child, self._asked_to_finish, self.usage = None, False, Usage()
        self._started_with = None
        if ended.completes:
            self._complete, self._holds_leases = True, False
        if not ended.failure:
            self._failures, self._failure = 0, ""
            return
        self._failures, self._failure = self._failures + 1, ended.failure
        if ended.halts:
            self._halted = ended.failure
        self._retry_at = time.monotonic() + retry_after_s(self._failures)
        if ended.halts or self._failures >= HAND_BACK_AFTER:
            self._hand_back()

    def _do(self, found: Next) -> None:
        if found.act == "start":
            self._start()
        elif found.act == "end at once":
            self._end_child()
            self._tell(found)
            self._hand_back()
        elif found.act == "finish" and not self._asked_to_finish and self.child is not None:
            self._asked_to_finish = True
            with suppress(ProcessLookupError):
                self.child.process.send_signal(FINISH)

    def _start(self) -> None:
        settings, bounds = self.settings, self.settings.limits
        home = self.folder.files_of(settings.join)
        for other in home.parent.glob("*"):
            if other != home:
                remove(other)  # of a run that this machine is no longer lent to; it can be fetched again
        key = ["--key", settings.key] if settings.key else []
        flags = [*bounds.flags(), *key, *settings.worker]
        prefix = scope_command(bounds.memory, bounds.threads)
        with held_back():
            self.child = Child(
                self.folder.name,
                ["worker", "--join", settings.join, "--home", str(home), "--name", self.folder.name, *flags],
                bounds.threads or 1,
                self.folder.log,
                environment={"PYTHONSAFEPATH": "1"},  # the directory that it is started in is not a place for code
                prefix=prefix,
            )
        self._started_with, self._holds_leases, self._handed_in = settings, True, False
        lower(self.child.process.pid, bounds.threads)

    def _end_child(self) -> None:
        """Kills the worker and all that it started."""
        if self.child is None:
            return
        for pid in tree_of(self.child.process.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.child.process.wait()
        self.child.close()
        self.child, self._asked_to_finish, self._started_with, self.usage = None, False, None, Usage()
        self._failures, self._failure = 0, ""

    def _hand_back(self) -> None:
        """Hands back what the worker held; tried again while the machine rests, should nobody answer."""
        if not self._holds_leases:
            return
        self._hand_back_at = time.monotonic() + HAND_BACK_RETRY_S
        try:
            state = self._status.state if self._status else "starting"
            self._handed_back += hand_back(self.settings, f"lent machine, {state}")
            self._holds_leases = False
            self._notes.pop("leases", None)
        except ShoalError as error:
            self._holds_leases = self._may_have_joined()
            if self._holds_leases:
                self._notes["leases"] = f"leases could not be handed back yet: {error}"

    def _may_have_joined(self) -> bool:
        """Whether a worker came as far as the run card, which it writes down before it joins."""
        return (self.folder.files_of(self.settings.join) / RUN_FILE).exists()

    def _tell(self, found: Next) -> None:
        """Writes the status if something is new that a person waits for, and otherwise now and then."""
        before = self._status
        worker, note = self.child.process.pid if self.child else None, "; ".join(self._notes.values())
        news = found.state, found.reason, worker, note, self._handed_back
        if news == self._told and time.monotonic() < self._tell_at:
            return
        self._told, self._tell_at = news, time.monotonic() + TELL_S
        self._status = LendStatus(
            state=found.state,
            reason=found.reason,
            since=before.since if before is not None and before.state == found.state else time.time(),
            pid=os.getpid(),
            worker=worker,
            doing=self._doing() if self.child else "",
            memory=self.usage.memory,
            peak_memory=self._peak,
            disk=self._disk,
            handed_back=self._handed_back,
            note=note,
        )
        with suppress(StorageError):  # a full disk must not keep the machine from its owner
            self.folder.write_status(self._status)

    def _doing(self) -> str:
        home = self.folder.files_of(self.settings.join)
        return next((role.doing for role in read_status(home) if role.role == self.folder.name), "")


def hand_back(settings: Settings, doing: str) -> int:
    """Hands back the leases of this machine's node, and says why it falls silent; how many there were."""
    key = Path(settings.key) if settings.key else default_key()
    if not key.exists():
        return 0  # it never joined
    with CoordinatorClient(trusted(settings.join), Key.load(key), HAND_BACK_S, timeout_s=HAND_BACK_S) as link:
        try:
            back = link.hand_back()
            link.heartbeat(doing)
        except Refusal as refusal:
            if refusal.code == "not-joined":
                return 0  # the worker was ended before it joined, so it never had a lease
            raise
        return len(back)


def lower(pid: int, threads: int | None) -> None:
    """Gives a process a low priority and as many CPUs as it may have threads; what it starts inherits both."""
    give_way(pid)
    if threads is not None and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[-threads:])


def _version(path: Path) -> object:
    """Differs when a file was replaced."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def supervise(folder: LendFolder, ready: Callable[[], None] = lambda: None) -> str:
    """Runs the supervisor of a folder in this process until it is over; SIGTERM and Ctrl-C end it as `stop` does."""
    with folder.held():
        supervisor = Supervisor(folder)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: supervisor.stop.set())
        ready()
        return supervisor.run()
