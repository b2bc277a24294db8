"""Ends vLLM soon after the process that started it: one that was killed must not leave an engine on its devices."""

import os
import signal
import threading
import time

CHECK_S = 1.0


def end_with(front: int) -> None:
    """Ends this process once the process `front` is gone.

    It is that process's child, or a child of vLLM's engine core, which is then ended as well. Nobody else is: what
    adopts an orphan may be the session manager of the machine's owner.
    """
    parent = os.getppid()

    def watch() -> None:
        while is_there(front):
            time.sleep(CHECK_S)
        if parent != front and os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
