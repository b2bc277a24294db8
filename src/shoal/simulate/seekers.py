"""Workers that wait for work: which of them asks next.

All of them together ask at the rate that the coordinator allows (`lease_rules.retry_s`). As long as nothing changes,
each would get the same answer, so nobody is drawn until there may be work again; then they ask one after the other, in
no order, until one is refused.
"""

from collections.abc import Callable
from random import Random

from shoal.coordinator.lease_rules import retry_s
from shoal.simulate.events import Events
from shoal.simulate.worker import Worker


class Seekers:
    """In a line per class of machines; `workers` says how many there are in all."""

    def __init__(self, events: Events, rng: Random, classes: int, workers: Callable[[], int]) -> None:
        self._events, self._rng, self._workers = events, rng, workers
        self._waiting: list[list[Worker]] = [[] for _ in range(classes)]
        self._count = 0
        self._is_awake = False

    def add(self, worker: Worker) -> None:
        if worker.place < 0:
            line = self._waiting[worker.group.index]
            worker.place = len(line)
            line.append(worker)
            self._count += 1

    def remove(self, worker: Worker) -> None:
        if worker.place >= 0:
            line = self._waiting[worker.group.index]
            last = line.pop()
            if last is not worker:
                line[worker.place] = last
                last.place = worker.place
            worker.place = -1
            self._count -= 1

    def wake(self) -> None:
        """There may be work: somebody asks soon."""
        if not self._is_awake and self._count:
            self._is_awake = True
            self._events.after(self._pause(), self._ask)

    def _pause(self) -> float:
        return retry_s(self._workers()) / self._count * self._rng.random() * 2

    def _ask(self) -> None:
        self._is_awake = False
        if self._count and (self._poll(self._any()) or self._poll(self._newest())):
            self.wake()

    def _poll(self, worker: Worker | None) -> bool:
        if worker is None:
            return False
        self.remove(worker)
        return worker.poll() or self._stays(worker)

    def _stays(self, worker: Worker) -> bool:
        """A worker that was refused has put itself back; one that could not even ask waits for its own events."""
        return worker.place < 0 and not worker.is_gone and self._count > 0

    def _any(self) -> Worker | None:
        at = self._rng.randrange(self._count)
        for line in self._waiting:
            if at < len(line):
                return line[at]
            at -= len(line)
        return None

    def _newest(self) -> Worker | None:
        """One of those whose version is the newest: it may serve steps that the others may not."""
        lines = [line for line in self._waiting if line]
        if not lines:
            return None
        line = max(lines, key=lambda line: -1 if line[0].group.version is None else line[0].group.version)
        return line[self._rng.randrange(len(line))]
