"""What a worker does next: which version to load, when to ask for a lease and with which version, what to stop for.

A worker holds several leases at once: while the last answers of one are generated, those of the next take the places of
answers that have ended, and those of the one before are scored and sent. A lease keeps the version that it began with
unless the run lets answers go on with newer ones. A lease is asked for only with the version that is loaded: one that
cannot be loaded, or fails its fingerprint, leaves no lease behind that nobody fulfils.

No input or output: `Pipeline` is what the worker holds, its methods say what follows from it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version

if TYPE_CHECKING:  # it imports torch, and nothing here computes
    from shoal.generate.flights import Flight

# A lease is asked for only if what is under way and the new one are done in this share of the time that leases last.
IN_TIME = 0.5


class Underway(Protocol):
    """What is asked of a lease that is under way; `Flight` is one."""

    @property
    def name(self) -> tuple[int, int]: ...

    @property
    def unfinished(self) -> int: ...

    @property
    def acting(self) -> int:
        """Answers that wait for an environment, and take no place in the engine."""
        ...

    def needs(self) -> Collection[Version]: ...

    def due(self, loaded: Version | None) -> Collection[int]: ...


F = TypeVar("F", bound=Underway)


@dataclass(slots=True)
class Pipeline(Generic[F]):
    """The leases of one worker whose answers are generated, or wait for their version to be loaded."""

    max_batch: int
    """Answers that the engine generates side by side."""
    async_level: int
    in_flight: bool
    flights: list[F] = field(default_factory=list)
    _before: list[F] = field(default_factory=list)
    """Leases that were under way when a newer version came than theirs."""

    def holds(self, beside: Iterable[Lease] = ()) -> list[tuple[int, int]]:
        """The leases that the worker works on, with those that are scored and sent."""
        own = [flight.name for flight in self.flights]
        return sorted({*own, *((lease.step, lease.submission) for lease in beside)})

    @property
    def unfinished(self) -> int:
        """Answers that have not ended, in the engine or not."""
        return sum(flight.unfinished for flight in self.flights)

    @property
    def in_engine(self) -> int:
        """Answers that take a place in the engine, or will as soon as there is one."""
        return sum(flight.unfinished - flight.acting for flight in self.flights)

    def notice(self, loaded: Version | None, newest: Version) -> None:
        """Remembers which leases were there when a newer version came: until they are done the loaded one still gets
        new ones."""
        if loaded is None or newest.number <= loaded.number:
            self._before = []
        elif not self._before:
            self._before = list(self.flights)

    def to_load(
        self, loaded: Version | None, newest: Version, under_way: int, is_asking: bool = False
    ) -> Version | None:
        """The version to load now, when nothing is generated and nothing can be with the one that is there; None for no
        other.

        It is the oldest that answers wait for, so that each lease comes to the end of a span before the next one. A
        worker without leases loads the newest, before it asks for one; not while it asks with the one that is there.
        """
        if under_way or any(flight.due(loaded) for flight in self.flights):
            return None
        if needed := {version for flight in self.flights for version in flight.needs()}:
            return min(needed, key=lambda version: version.number)
        return None if self.flights or is_asking or loaded == newest else newest

    def span_version(self, flight: "Flight", loaded: Version | None, newest: Version) -> int:
        """The version to ask for a lease's next span with: the newest, if its step takes it."""
        begun = flight.later[-1].version if flight.later else flight.lease.version
        known = [number for number in (newest.number, loaded.number if loaded else 0) if number <= flight.lease.step]
        return max(begun, *known) if known else begun

    def take_finished(self) -> list[F]:
        """Takes out the leases whose answers have all ended."""
        done = [flight for flight in self.flights if not flight.unfinished]
        self.flights = [flight for flight in self.flights if flight.unfinished]
        return done

    def ask_with(self, loaded: Version | None, newest: Version, is_sending: bool = False) -> int | None:
        """The version to ask for a lease with, which is the one that is loaded, if there is room for one; None if not.

        While answers of an older version are still generated, the engine's free places are filled with leases of that
        version, as long as the run still takes it and one of those is under way that were when the newer one came: so
        one long answer idles nothing, and the newer version is not put off for ever. Where answers change versions
        themselves, the next lease is of the newest, once the answers under way have changed to it.

        At async level 0 there is one lease at a time, until its file is handed in: nothing then depends on timing, and
        two runs of one seed are equal to the bit.
        """
        if self.async_level == 0 and (self.flights or is_sending):
            return None
        if self.in_engine >= self.max_batch or any(set(flight.needs()) - {loaded} for flight in self.flights):
            return None
        if loaded == newest:
            return newest.number
        if loaded is None or self.in_flight or not 0 < newest.number - loaded.number <= self.async_level:
            return None
        return loaded.number if any(flight in self._before for flight in self.flights) else None


def can_be_met(unfinished: int, answer_tokens: float, lease_answers: int, tokens_per_s: float, lease_s: float) -> bool:
    """Whether one more lease would be done in time: by what answers and leases were like so far, 0 for what is not
    known. A worker that has nothing to do asks for one in any case, and learns how long leases last now."""
    if not unfinished or not answer_tokens or not tokens_per_s or not lease_s:
        return True
    return (unfinished + lease_answers) * answer_tokens / tokens_per_s <= IN_TIME * lease_s


@dataclass(frozen=True, slots=True)
class FileTime:
    """How long a file took from its lease to its last answer, with so many answers open when it was begun."""

    seconds: float
    open_answers: int


def tools_can_meet(unfinished: int, lease_answers: int, last: FileTime | None, lease_s: float) -> bool:
    """The same where answers wait for environments, of which the engine's speed says nothing: by how long the last file
    took in all. One more takes as long, and longer in proportion where more answers are open, for the environments may
    have no room for them. Until a first file has shown that, there is one lease at a time."""
    if not unfinished:
        return True
    if last is None:
        return False
    return last.seconds * max(1.0, (unfinished + lease_answers) / last.open_answers) <= IN_TIME * lease_s
