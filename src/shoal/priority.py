"""Low scheduling priority that holds across sessions.

Linux weighs the processes of one session against each other by their nice values, and sessions against each other as
groups (autogroup, see sched(7)): a process in a session of its own takes half of a busy core, whatever its nice value
is, unless its group has one too. A new session's group has none, so what starts one passes its own priority on.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

NICE = 10
TRIES = 3
RETRY_S = 0.11


def give_way(pid: int = 0) -> None:
    """Lets everything else go first: for a process, by default this one, that only looks on, talks, or is lent."""
    with suppress(OSError):
        nice = max(NICE, os.getpriority(os.PRIO_PROCESS, pid))
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        _weigh_session(pid, nice, TRIES)


def pass_on_priority(pid: int = 0) -> None:
    """Gives the session that a process has just begun the nice value that the process has from its parent."""
    with suppress(OSError):
        if nice := os.getpriority(os.PRIO_PROCESS, pid):
            _weigh_session(pid, nice, 1)


def _weigh_session(pid: int, nice: int, tries: int) -> None:
    """Only for the leader of a session: others do not speak for it. The kernel takes ten such requests per second from
    all users together, and refuses others with EAGAIN."""
    if os.getsid(pid) != (pid or os.getpid()):
        return
    for left in reversed(range(tries)):
        try:
            Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))
            return
        except BlockingIOError:
            if left:
                time.sleep(RETRY_S)
