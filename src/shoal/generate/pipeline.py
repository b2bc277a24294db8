"""What a worker does next: which version to load, when to ask for a lease and with which version, what to stop for.

A worker holds several leases at once: while the last answers of one are generated, those of the next take the places of
answers that have ended, and those of the one before are scored and sent. A lease keeps the version that it began with
unless the run lets answers go on with newer ones.

No input or output: `Pipeline` is what the worker holds, its methods say what follows from it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal.generate.flights import Flight
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version

# A lease is asked for only if what is under way and the new one are done in this share of the time that leases last.
IN_TIME = 0.5


@dataclass(slots=True)
class Pipeline:
    """The leases of one worker, from those that wait for their version to those whose answers are generated."""

    max_batch: int
    """Answers that the engine generates side by side."""
    async_level: int
    in_flight: bool
    flights: list[Flight] = field(default_factory=list)
    waiting: list[Flight] = field(default_factory=list)
    """Leases that cannot begin yet, because another version than theirs is loaded and in use."""
    _before: list[Flight] = field(default_factory=list)
    """Leases that were under way when a newer version came than theirs."""

    def holds(self, beside: Iterable[Lease] = ()) -> list[tuple[int, int]]:
        """The leases that the worker works on, with those that are scored and sent."""
        own = [flight.name for flight in (*self.flights, *self.waiting)]
        return sorted({*own, *((lease.step, lease.submission) for lease in beside)})

    @property
    def unfinished(self) -> int:
        """Answers that have not ended, in the engine or not."""
        return sum(flight.unfinished for flight in (*self.flights, *self.waiting))

    def drop(self, is_over: Callable[[Flight], bool]) -> list[Flight]:
        """Lets go of leases whose files nobody would take any more; their draws are given again."""
        over = [flight for flight in (*self.flights, *self.waiting) if is_over(flight)]
        self.flights = [flight for flight in self.flights if flight not in over]
        self.waiting = [flight for flight in self.waiting if flight not in over]
        return over

    def notice(self, loaded: Version | None, newest: Version) -> None:
        """Has the answers stop for a newer version, where they may go on with it, or else remembers which leases were
        there when it came: until they are done the loaded version still gets new ones."""
        if loaded is None or newest.number <= loaded.number:
            self._before = []
            for flight in self.flights:
                flight.place = None  # one that they stopped for was taken back
        elif self.in_flight:
            for flight in self.flights:
                flight.stop()
        elif not self._before:
            self._before = list(self.flights)

    def to_load(self, loaded: Version | None, newest: Version) -> Version | None:
        """The version to load now, when nothing that is generated needs the one that is there; None for no other."""
        if not self.flights:
            wanted = self.waiting[0].version if self.waiting else None
            return wanted if wanted != loaded else None
        if all(flight.is_stopped for flight in self.flights) and newest != loaded:
            return newest
        return None

    def begin(self, loaded: Version | None) -> list[Flight]:
        """Begins the leases of the loaded version that wait."""
        ready = [flight for flight in self.waiting if flight.version == loaded]
        self.waiting = [flight for flight in self.waiting if flight.version != loaded]
        self.flights += ready
        return ready

    def take_finished(self) -> list[Flight]:
        """Takes out the leases whose answers have all ended."""
        done = [flight for flight in self.flights if not flight.unfinished]
        self.flights = [flight for flight in self.flights if flight.unfinished]
        return done

    def ask_with(self, loaded: Version | None, newest: Version) -> int | None:
        """The version to ask for a lease with, if there is room for one; None if not.

        While answers of an older version are still generated, the engine's free places are filled with leases of that
        version, as long as the run still takes it and one of those is under way that were when the newer one came: so
        one long answer idles nothing, and the newer version is not put off for ever.
        """
        if self.waiting or self.unfinished >= self.max_batch:
            return None
        if loaded is None or not self.flights or newest.number <= loaded.number:
            return newest.number
        if self.in_flight or newest.number > loaded.number + self.async_level:
            return None
        return loaded.number if any(flight in self._before for flight in self.flights) else None


def can_be_met(unfinished: int, answer_tokens: float, lease_answers: int, tokens_per_s: float, lease_s: float) -> bool:
    """Whether one more lease would be done in time: by what answers and leases were like so far, 0 for what is not
    known."""
    if not answer_tokens or not tokens_per_s or not lease_s:
        return True
    return (unfinished + lease_answers) * answer_tokens / tokens_per_s <= IN_TIME * lease_s
