"""What a worker does beside generation, in threads: asks for leases and draws their tasks, scores answers, sends files.

A thread that is still at work when the process ends is lost with it, as by a kill: its lease is the node's own, and is
repeated.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import RolloutError
from shoal.generate.flights import Flight
from shoal.generate.submission_builder import Asked, Maker
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import LeaseStore
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """A lease that cannot be worked on, or whose file was not taken, and why."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that was handed in."""

    submission: Submission
    tokens_per_s: float


class Beside:
    """The threads of one worker. What they find is given when it is asked for, in the worker's own thread."""

    def __init__(self, name: str, store: LeaseStore, maker: Maker) -> None:
        self._name, self._store, self._maker = name, store, maker
        self._asking: Future[Asked | Refused | None] | None = None
        self._sending: dict[Lease, Future[Sent | Refused]] = {}
        self._spans: dict[Flight, Future[SpanLease | Refused]] = {}
        self._one_file = threading.Lock()
        self._news = threading.Event()

    @property
    def is_asking(self) -> bool:
        return self._asking is not None

    @property
    def sending(self) -> Sequence[Lease]:
        """Leases whose answers are there and whose files are not handed in yet."""
        return list(self._sending)

    def ask(self, version: int, holding: Collection[tuple[int, int]]) -> None:
        """Begins to ask for a lease with a version; `answer` has what came of it."""
        assert self._asking is None

        def work() -> Asked | Refused | None:
            lease = self._store.lease(self._name, version, holding)
            if lease is None:
                return None
            try:
                return self._maker.asked(lease)
            except RolloutError as error:  # the table that it draws by was taken back with its version
                return Refused(lease, str(error))

        self._asking = self._begin(work)

    def answer(self) -> Asked | Refused | None:
        """What the coordinator said, once: a lease with what it asks for, or None if there is none for now."""
        assert self._asking is not None
        said, self._asking = self._asking, None
        return said.result()

    @property
    def is_answered(self) -> bool:
        return self._asking is not None and self._asking.done()

    def ask_span(self, flight: Flight, first: int, version: int) -> None:
        """Begins to ask what the span of a lease from token `first` on is drawn with; `spans` has what came of it."""

        def work() -> SpanLease | Refused:
            try:
                return self._store.span(flight.lease, first, version)
            except RolloutError as error:
                return Refused(flight.lease, str(error))

        self._spans[flight] = self._begin(work)

    def is_asking_for(self, flight: Flight) -> bool:
        return flight in self._spans

    def spans(self) -> list[tuple[Flight, SpanLease | Refused]]:
        """Span leases that came since this was last asked."""
        done = {flight: future for flight, future in self._spans.items() if future.done()}
        for flight in done:
            del self._spans[flight]
        return [(flight, future.result()) for flight, future in done.items()]

    def send(self, asked: Asked, flight: Flight, tokens_per_s: float) -> None:
        """Begins to score the answers of a lease and to hand in its file; one file after the other."""

        def work() -> Sent | Refused:
            with self._one_file:
                made = self._maker.submission(asked, flight.version, flight.completions(), flight.later)
                data = write_rollouts(made, groups_with_signal(made))
                try:
                    self._store.put(flight.lease, data)
                except RolloutError as error:
                    return Refused(flight.lease, str(error))
            return Sent(made, tokens_per_s)

        self._sending[flight.lease] = self._begin(work)

    def sent(self) -> list[Sent | Refused]:
        """Files that were handed in since this was last asked, or refused; what else went wrong is raised."""
        done = {lease: future for lease, future in self._sending.items() if future.done()}
        for lease in done:
            del self._sending[lease]
        return [future.result() for future in done.values()]

    def wake(self) -> None:
        """Ends a wait: there is news from elsewhere."""
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Waits until there is news, or for so long."""
        self._news.wait(seconds)
        self._news.clear()

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        found: Future[T] = Future()

        def run() -> None:
            try:
                found.set_result(work())
            except BaseException as error:
                found.set_exception(error)
            self._news.set()

        threading.Thread(target=run, daemon=True).start()
        return found
