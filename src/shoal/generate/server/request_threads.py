"""Threads that ask a server, and that nobody waits for when the process ends.

The interpreter joins those of `ThreadPoolExecutor` before it ends, whatever `shutdown` was told: a worker that was
interrupted would stay for as long as a server that hangs may take.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class RequestThreads:
    """Makes up to `count` calls side by side; those beyond that wait for their turn."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call))
        if len(self._threads) < self._count:
            self._threads.append(Thread(target=self._work, name="server-request", daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """Ends each thread as soon as the call that it makes has ended."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (next_one := self._calls.get()) is not None:
            future, call = next_one
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
