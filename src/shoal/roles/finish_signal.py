"""SIGUSR1: how a lent worker is told to finish what is under way, and to end.

A worker takes seconds until it can listen, and minutes if it fetches task files first; the signal would end it before
that. So the process that starts one has the signal blocked meanwhile (`held_back`), which a new program inherits with
what is pending: the worker hears it as soon as it listens (`told_to_finish`). One that comes too late ends nobody.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FINISH = signal.SIGUSR1


@contextmanager
def held_back() -> Iterator[None]:
    """The signal waits in every process that is started meanwhile, until that listens."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (FINISH,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def came_early() -> bool:
    """Whether the signal waits already."""
    return FINISH in signal.sigpending()


@contextmanager
def told_to_finish() -> Iterator[threading.Event]:
    """An event that the signal sets, also one that came before."""
    finish = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there can signals be heard
        yield finish
        return
    before = signal.signal(FINISH, lambda _number, _frame: finish.set())
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, (FINISH,))
    try:
        yield finish
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(FINISH, before)
