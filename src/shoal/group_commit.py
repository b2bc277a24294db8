"""Group commit: one thread writes, queued jobs share one transaction, and each caller is answered after it commits.

So nothing is acknowledged that could be lost, two writers never race, and many of them share one wait for the disk.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Job, Answer]):
    """A queue of jobs and the thread that commits them, as many together as wait."""

    def __init__(
        self, name: str, commit: Callable[[Sequence[Job]], Sequence[Answer | Exception]], max_at_once: int
    ) -> None:
        """`commit` gives one answer per job when all is durable; an exception among them is raised to that caller.

        If it raises instead, every job of the batch has failed with that error.
        """
        self._commit = commit
        self._max_at_once = max_at_once
        self._queue: queue.SimpleQueue[tuple[Job, Future[Answer]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Answer]":
        future: Future[Answer] = Future()
        self._queue.put((job, future))
        return future

    def close(self) -> None:
        """Commits what waits, and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while batch := self._next_batch():
            waiting = [(job, future) for job, future in batch if future.set_running_or_notify_cancel()]
            if not waiting:
                continue
            try:
                answers = self._commit([job for job, _ in waiting])
            except Exception as error:
                answers = [error] * len(waiting)
            for (_, future), answer in zip(waiting, answers, strict=True):
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _next_batch(self) -> list[tuple[Job, Future[Answer]]]:
        """All that waits, up to the bound; empty when there will be no more."""
        if (first := self._queue.get()) is None:
            return []
        batch = [first]
        with contextlib.suppress(queue.Empty):
            while len(batch) < self._max_at_once:
                if (more := self._queue.get_nowait()) is None:
                    self._queue.put(None)  # for the next call to find
                    break
                batch.append(more)
        return batch
