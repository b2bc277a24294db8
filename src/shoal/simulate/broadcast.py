"""Versions on their way: from the origin to relays, and from relays to classes of machines that are about equally fast.

What to fetch is decided by `package_plan.route`, from which relay by `selection.choose` with beliefs that are updated
as the client updates its own, and which versions go out as a delta, whole or both by `versions.delta_room` and
`versions.full_is_due`. Relays pass on what they have while the rest is still coming.

Machines with neighbouring download rates form a class, which fetches as one machine does and takes as much of the
relays as all of its machines together: up to `CLASSES` machines each is a class of its own, and nothing is lost.
"""

from collections.abc import Callable
from random import Random
from typing import Literal

from shoal.shardcast.fetch.selection import Belief, choose
from shoal.shardcast.format.package_plan import retained, route
from shoal.shardcast.format.records import Base, Entry
from shoal.shardcast.origin.versions import delta_room, full_is_due
from shoal.simulate.events import Events
from shoal.simulate.inputs import Services, Training
from shoal.simulate.link import Link

CLASSES = 64
# Stretches in which a package is fetched, each from a relay that is drawn for it.
STRETCHES = 12
# Transfers that a client has under way at once.
SIDE_BY_SIDE = 2
# A relay passes on the first piece of a stretch before it has the second.
PIECE = 4e6
PIECE_SIZE = 1 << 22


class Origin:
    """What is offered: packages, and when relays have how much of them."""

    def __init__(self, events: Events, services: Services, training: Training) -> None:
        self.events, self.training = events, training
        self.newest = 0
        self.links = [Link(events, services.relay_rate) for _ in range(services.relays)]
        self.intake = min(services.relay_rate, services.origin_rate / services.relays)
        """Bytes per second at which each relay receives."""
        self.begun: dict[str, float] = {}
        """When relays began to receive each package."""
        self._free = events.now
        self._since_full = 0
        self.entries = [self._entry(0, "full", training.version_bytes)]
        self._offer(self.entries)
        self._ways: dict[tuple[int | None, int], list[Entry]] = {}

    def publish(self, version: int) -> None:
        """Offers a version as `Versions.publish` does: a delta where it pays, and a full one where it is due."""
        training, entries = self.training, []
        has_delta = training.kind == "delta" and training.update_bytes <= delta_room(int(training.version_bytes))
        if has_delta:
            entries.append(self._entry(version, "delta", training.update_bytes, version - 1))
        self._since_full += 1
        if full_is_due(has_delta, self._since_full):
            size = training.update_bytes if training.kind == "lora" else training.version_bytes
            entries.append(self._entry(version, "full", size))
            self._since_full = 0
        self.newest = version
        self.entries = retained([*self.entries, *entries], self.training.keep)
        self._offer(entries)

    def way(self, held: int | None, version: int) -> list[Entry]:
        """The packages that lead from a version, or from nothing, to another."""
        known = self._ways.get((held, version))
        if known is None:
            here = [] if held is None else [(held, _root(held))]
            known = route(self.entries, here, version) or []
            if self.training.kind == "lora" and held is None and version:
                known = [entry for entry in self.entries if entry.number == 0] + known
            if len(self._ways) > 4096:
                self._ways.clear()
            self._ways[held, version] = known
        return known

    def _entry(self, number: int, kind: Literal["full", "delta"], size: float, base: int | None = None) -> Entry:
        name = f"{number:064x}"
        return Entry.model_construct(
            number=number,
            kind=kind,
            id=f"{kind}-{name}",
            base=None if base is None else Base.model_construct(number=base, root=_root(base)),
            piece_size=PIECE_SIZE,
            size=int(size),
            root=_root(number),
        )

    def _offer(self, entries: list[Entry]) -> None:
        """Relays fetch one package after the other, the smallest first, as their followers wait for it."""
        for entry in sorted(entries, key=lambda entry: entry.size or 0):
            size = float(entry.size or 0)
            self.begun[entry.id] = begun = max(self._free, self.events.now)
            self._free = begun + size / self.intake


def _root(number: int) -> str:
    return f"{number:064x}"


class Group:
    """Machines that fetch as one: those of a class, or newcomers of the same minute."""

    def __init__(
        self, origin: Origin, weight: int, download: float, rng: Random, here: Callable[["Group", int], None]
    ) -> None:
        self.origin, self.weight, self.download, self.rng, self.here = origin, weight, download, rng, here
        self.version: int | None = None
        """The newest that is here."""
        self.beliefs = [Belief() for _ in origin.links]
        self.arrived = 0.0
        """When it came."""
        self.index = -1
        """Which class it is; below 0 for newcomers."""
        self.is_fetching = False
        self._goal = 0
        self._way: list[Entry] = []
        self._next = self._under_way = 0
        self._is_waiting = False

    def look(self) -> None:
        """Fetches the newest version unless it is here, or another one is being fetched."""
        if self.is_fetching or self.version == self.origin.newest or not self.weight:
            return
        self._goal = self.origin.newest
        self._way = list(self.origin.way(self.version, self._goal))
        self.is_fetching = True
        self._begin()

    def _begin(self) -> None:
        if not self._way:
            self.is_fetching, self.version, self.arrived = False, self._goal, self.origin.events.now
            self.here(self, self._goal)
            self.look()
            return
        self._next = self._under_way = 0
        self._fill()

    def _fill(self) -> None:
        """Asks for as many stretches as may be under way."""
        if not self.is_fetching:
            return
        while self._next < STRETCHES and self._under_way < min(SIDE_BY_SIDE, len(self.beliefs)):
            if not self._ask():
                return
        if self._next == STRETCHES and not self._under_way:
            self._way.pop(0)
            self._begin()

    def _ask(self) -> bool:
        """Asks a relay for the next stretch; False if none has its first piece yet, and it is looked for later."""
        origin, entry = self.origin, self._way[0]
        stretch = (entry.size or 0) / STRETCHES
        first = origin.begun[entry.id] + (self._next * stretch + min(stretch, PIECE)) / origin.intake
        if first > origin.events.now:
            if not self._is_waiting:
                self._is_waiting = True
                origin.events.after(first - origin.events.now + 1e-6, self._look_again)
            return False
        relay = choose(self.beliefs, self.rng)
        lines = min(SIDE_BY_SIDE, len(self.beliefs))
        most = self.download / lines
        if origin.events.now < origin.begun[entry.id] + (entry.size or 0) / origin.intake:
            most = min(most, origin.intake)
        self._next += 1
        self._under_way += 1
        began = origin.events.now
        origin.links[relay].send(stretch, self.weight, most, lambda: self._got(relay, stretch, began))
        return True

    def _look_again(self) -> None:
        self._is_waiting = False
        self._fill()

    def _got(self, relay: int, size: float, began: float) -> None:
        took = max(self.origin.events.now - began, 1e-6)
        self.beliefs[relay] = self.beliefs[relay].delivered(size / took)
        self.beliefs = [belief.healed() for belief in self.beliefs]
        self._under_way -= 1
        self._fill()
