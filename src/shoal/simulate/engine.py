"""A worker's engine: answers of several leases side by side, as many as it has places.

One pass gives each running answer a token and takes `pass_s` and `answer_s` for each answer beside it. Time passes from
one answer's end to the next, so a batch whose last answers are long is as slow as it is on a real machine.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count
from math import inf

from shoal.protocol.stores import Version
from shoal.simulate.book import LeaseRow

_NUMBERS = count()


class Flight:
    """A lease while it is generated; what `Pipeline` asks of it is `generate.pipeline.Underway`."""

    __slots__ = ("acting", "is_submitted", "lease", "lengths", "tokens", "unfinished", "version")

    def __init__(self, lease: LeaseRow, lengths: Sequence[float]) -> None:
        self.lease, self.lengths = lease, lengths
        self.version = Version(lease.version, "")
        self.unfinished, self.tokens = len(lengths), sum(lengths)
        self.acting = 0  # simulated answers have one turn
        self.is_submitted = False

    @property
    def name(self) -> tuple[int, int]:
        return self.lease.step, self.lease.submission

    def needs(self) -> Sequence[Version]:
        return () if self.is_submitted else (self.version,)

    def due(self, loaded: Version | None) -> Sequence[int]:
        return range(len(self.lengths)) if not self.is_submitted and loaded == self.version else ()


class Engine:
    """Places for answers, and how far those in them have come."""

    __slots__ = ("_alone", "_running", "_tick", "_waiting", "answer_s", "pass_s", "places")

    def __init__(self, places: int, pass_s: float, answer_s: float) -> None:
        self.places, self.pass_s, self.answer_s = places, pass_s, answer_s
        self._tick = 0.0
        self._running: list[tuple[float, int, Flight]] = []
        self._alone: Flight | None = None
        """The lease whose answers are all that is running, if it left places free from the start."""
        self._waiting: deque[tuple[float, Flight]] = deque()

    @property
    def unfinished(self) -> int:
        return len(self._running) + len(self._waiting)

    def submit(self, flight: Flight) -> None:
        flight.is_submitted = True
        is_first = not self._running and len(flight.lengths) < self.places
        self._alone = flight if is_first else None
        if is_first:
            tick = self._tick
            self._running = [(tick + tokens, -number, flight) for number, tokens in enumerate(flight.lengths, 1)]
            heapq.heapify(self._running)
            return
        for tokens in flight.lengths:
            if len(self._running) < self.places:
                heapq.heappush(self._running, (self._tick + tokens, next(_NUMBERS), flight))
            else:
                self._waiting.append((tokens, flight))

    def drop(self, flight: Flight) -> None:
        """Stops work on a lease; others take its places."""
        self._alone = None
        self._running = [place for place in self._running if place[2] is not flight]
        self._waiting = deque(place for place in self._waiting if place[1] is not flight)
        heapq.heapify(self._running)
        while self._waiting and len(self._running) < self.places:
            self._begin(self._running, self._waiting, self._tick)

    def work_ahead(self) -> float:
        """Seconds of work until a lease is done, or until there is room for another; infinity without answers."""
        if not self._running:
            return inf
        if self._alone is not None:
            return self._work_of_all()
        running, waiting, tick, work = self._running.copy(), self._waiting.copy(), self._tick, 0.0
        left: dict[int, int] = {}
        while True:
            end, _, flight = running[0]
            work += (end - tick) * (self.pass_s + self.answer_s * len(running))
            tick = end
            heapq.heappop(running)
            if waiting:
                self._begin(running, waiting, tick)
            left[id(flight)] = left.get(id(flight), flight.unfinished) - 1
            if not left[id(flight)] or len(running) + len(waiting) == self.places - 1:
                return work

    def _work_of_all(self) -> float:
        """The same where one lease is all that there is, and has had places for others all along."""
        work, tick, many = 0.0, self._tick, len(self._running)
        for end in sorted([place[0] for place in self._running]):
            work += (end - tick) * (self.pass_s + self.answer_s * many)
            tick = end
            many -= 1
        return work

    def finish(self, work: float) -> None:
        """Does all the work that `work_ahead` said."""
        if self._alone is None:
            self.advance(work)
            return
        self._tick = max(place[0] for place in self._running)
        self._alone.unfinished = 0
        self._running.clear()
        self._alone = None

    def advance(self, work: float) -> None:
        """Does so much work."""
        while self._running:
            end, _, flight = self._running[0]
            cost = self.pass_s + self.answer_s * len(self._running)
            if (end - self._tick) * cost > work + 1e-9:
                self._tick += work / cost
                return
            work -= (end - self._tick) * cost
            self._tick = end
            heapq.heappop(self._running)
            flight.unfinished -= 1
            if self._waiting:
                self._begin(self._running, self._waiting, self._tick)

    @staticmethod
    def _begin(running: list[tuple[float, int, Flight]], waiting: deque[tuple[float, Flight]], tick: float) -> None:
        tokens, flight = waiting.popleft()
        heapq.heappush(running, (tick + tokens, next(_NUMBERS), flight))
