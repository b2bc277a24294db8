"""The validators: who judges which file next, and how long it takes. Every decision is a real run's own.

The coordinator's list is in the order of `book.judging_order`. One validator is given all of it; of several, each is
dealt a file at a time by `coordinator.judging_turns`, which also gives a file to the next one when its first is late.
In what a validator was given it chooses by `validate.queue`, with the version that it has loaded. Which files are
computed again whole, and how many answers of the others, is drawn by `validate.audit`.

A real validator judges for half a second before it asks for better files. Here it asks after each.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from shoal.coordinator.judging_turns import Pace, Turns, mixed
from shoal.protocol.lease import Lease
from shoal.protocol.stores import PROVEN, Upload
from shoal.simulate.book import Book, File, Place, judging_order
from shoal.simulate.events import Events
from shoal.simulate.inputs import Inputs
from shoal.simulate.processor import Processor
from shoal.validate.audit import Audits, spot_rate
from shoal.validate.queue import NewcomerTime, in_turn, one_newcomer_first

# Files that a validator is dealt at a time: as many as it judges in half a second, and at least one.
HAND = 1
# How long after a validator may have become late it is looked at again, at least.
LATER_S = 1.0


class Validators:
    """Judge one file at a time each."""

    def __init__(
        self, inputs: Inputs, events: Events, book: Book, processor: Processor, accepted: Callable[[File], None]
    ) -> None:
        self._inputs, self._events, self._book, self._processor = inputs, events, book, processor
        self._accepted = accepted
        secret = inputs.seed.to_bytes(32, "big")
        self._audits = Audits(inputs.audit, secret)
        names = [f"validator-{number}" for number in range(inputs.services.validators)]
        self._there = frozenset(names)
        self._turns = Turns(secret, Pace(inputs.services.hold_s), seats=1, steals=True)
        self._for_newcomers = {name: NewcomerTime() for name in names}
        self._loaded = dict.fromkeys(names, 0)
        """The version that each has in its policy: at the start the base."""
        self._free = dict.fromkeys(names)
        self._at: dict[str, tuple[Place, float]] = {}
        """Which file each validator that is at work has, and since when."""
        self._files: dict[Place, tuple[File, Upload]] = {}
        """Without a verdict."""
        self._judged_s = 0.0
        self.dropped_tokens = 0.0
        """Of files that came too late to be judged."""
        self.waited_s: list[float] = []
        """From arrival to verdict, of each file."""

    @property
    def waiting(self) -> int:
        """Files that no validator is at."""
        return len(self._files.keys() - {place for place, _ in self._at.values()})

    def busy_s(self) -> float:
        """Seconds of all of them at work up to now."""
        return self._judged_s + sum(self._events.now - began for _, began in self._at.values())

    def add(self, file: File) -> None:
        self._events.after(self._inputs.services.verdict_s, self._enqueue, file)

    def _enqueue(self, file: File) -> None:
        lease = file.lease
        known = Lease("", str(lease.node.number), *file.place, lease.version, lease.groups, 0, lease.until)
        self._files[file.place] = file, Upload(*file.place, known, Path())
        self._offer(file.place)

    def _offer(self, place: Place) -> None:
        """Those that are free ask, in the order in which they are to judge this file, until one has it."""
        for who in self._turns.ranked(place, self._free.keys()):
            if not self._ask(who) or self._at[who][0] == place:
                return

    def _ask(self, who: str) -> bool:
        """Begins with the next file of a validator that is free; False if there is none for it."""
        files = judging_order(self._in_time())
        if len(self._there) > 1:
            files = self._dealt(who, files)
        order = in_turn([self._files[file.place][1] for file in files], self._rank, self._loaded[who])
        if not order:
            return False
        if self._for_newcomers[who].is_due:
            order = one_newcomer_first(order, self._rank)
        self._begin(who, order[0], sum(self._rank(upload) >= PROVEN for upload in order))
        return True

    def _in_time(self) -> Iterable[File]:
        """Files for steps that are not trained yet. Others are dropped, but those that a validator is at."""
        at = {place for place, _ in self._at.values()}
        newest = self._book.newest
        for place in [place for place in self._files if place[0] < newest and place not in at]:
            file, _ = self._files.pop(place)
            self._book.drop(file)
            self.dropped_tokens += file.tokens
        return [file for (step, _), (file, _) in self._files.items() if step >= newest]

    def _dealt(self, who: str, files: list[File]) -> list[File]:
        now = self._events.now
        for idle in self._free:  # they ask all the time
            self._turns.asks(idle, HAND, now)
        proven, others = ([f for f in files if (f.lease.node.record >= PROVEN) == one] for one in (True, False))
        waiting = [file.place for file in mixed(proven, others)]
        return [self._files[place][0] for place in self._turns.deal(who, waiting, self._there, HAND, now)]

    def _rank(self, upload: Upload) -> int:
        return self._files[upload.step, upload.submission][0].lease.node.record

    def _begin(self, who: str, upload: Upload, proven: int) -> None:
        """A validator takes a file; `proven` says how many of those that it was given are of proven nodes."""
        file, now = self._files[upload.step, upload.submission][0], self._events.now
        is_proven = self._rank(upload) >= PROVEN
        del self._free[who]
        self._at[who] = file.place, now
        self._processor.run(self._work(who, file), partial(self._judged, who, file, is_proven, bool(proven)))
        if len(self._there) > 1:
            self._events.after(self._turns.pace.late_s, self._if_late, who, file.place, now)

    def _if_late(self, who: str, place: Place, began: float) -> None:
        """Offers a file to others if its validator, which is still at it, has become late."""
        if self._at.get(who) != (place, began) or place not in self._files:
            return
        pace, now = self._turns.pace, self._events.now
        if pace.is_late(who, began, now):
            self._offer(place)
        else:
            self._events.after(max(LATER_S, began + pace.late_s - now), self._if_late, who, place, began)

    def _work(self, who: str, file: File) -> float:
        """Seconds that a file takes: those of its answers that are computed again, and of loading their version."""
        audit, services, lease = self._inputs.audit, self._inputs.services, file.lease
        whole = self._audits.drawn(str(lease.node.number), f"{lease.step}/{lease.submission}", lease.step)
        share = 1.0 if whole else spot_rate(audit, lease.groups * self._inputs.group_size)
        load_s = 0.0
        if share and self._loaded[who] != lease.version:
            load_s, self._loaded[who] = self._inputs.machines.load_s, lease.version
        return load_s + services.judge_s + share * file.tokens * services.judge_token_s

    def _judged(self, who: str, file: File, is_proven: bool, was_beside_proven: bool) -> None:
        now = self._events.now
        took = now - self._at.pop(who)[1]
        self._free[who] = None
        self._judged_s += took
        if is_proven:
            self._for_newcomers[who].proven_took(took)
        elif was_beside_proven:
            self._for_newcomers[who].newcomer_took(took)
        self._turns.judged(who, file.place, file.received, now)
        if self._files.pop(file.place, None) is not None:  # of two verdicts the first stands
            self.waited_s.append(now - file.received)
            self._book.accept(file)
            self._accepted(file)
        if who in self._free:
            self._ask(who)
