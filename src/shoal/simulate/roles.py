"""The trusted roles: validators that judge files in turn, and the trainer that waits for a step's groups."""

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count

from shoal.protocol.pacing import is_collected
from shoal.protocol.stores import PROVEN
from shoal.simulate.book import Book, File
from shoal.simulate.events import Events
from shoal.simulate.inputs import Inputs
from shoal.simulate.processor import Processor
from shoal.validate.audit import Audits
from shoal.validate.queue import NewcomerTime


class Validators:
    """Judge files one after the other: those of nodes that have shown that they work first, version by version.

    What part of the time is for the others is counted by `validate.queue.NewcomerTime`; which files are computed again
    whole is drawn by `validate.audit.Audits`.
    """

    def __init__(
        self, inputs: Inputs, events: Events, book: Book, processor: Processor, accepted: Callable[[File], None]
    ) -> None:
        self._inputs, self._events, self._book, self._processor = inputs, events, book, processor
        self._accepted = accepted
        self._audits = Audits(inputs.audit, inputs.seed.to_bytes(32, "big"))
        self._proven: list[tuple[tuple[int, int, int], File]] = []
        self._newcomers: list[tuple[tuple[int, int, int], File]] = []
        self._for_newcomers = [NewcomerTime() for _ in range(inputs.services.validators)]
        self._numbers = count()
        self._free = list(range(inputs.services.validators))
        self._loaded = [-1] * inputs.services.validators
        self._judged_s = 0.0
        self._began: dict[int, float] = {}
        """When each validator that is at work began with its file."""
        self.dropped_tokens = 0.0
        """Of files that came too late to be judged."""
        self.waited_s: list[float] = []
        """From arrival to verdict, of each file."""

    @property
    def waiting(self) -> int:
        return len(self._proven) + len(self._newcomers)

    def busy_s(self) -> float:
        """Seconds of all of them at work up to now."""
        return self._judged_s + sum(self._events.now - began for began in self._began.values())

    def add(self, file: File) -> None:
        self._events.after(self._inputs.services.verdict_s, self._enqueue, file)

    def _enqueue(self, file: File) -> None:
        lease = file.lease
        queue = self._proven if lease.node.record >= PROVEN else self._newcomers
        heapq.heappush(queue, ((lease.step, lease.version, next(self._numbers)), file))
        self._next()

    def _next(self) -> None:
        while self._free and self.waiting:
            who = self._free[-1]
            is_newcomer = not self._proven or (bool(self._newcomers) and self._for_newcomers[who].is_due)
            _, file = heapq.heappop(self._newcomers if is_newcomer else self._proven)
            if file.lease.step < self._book.newest:
                self._book.drop(file)
                self.dropped_tokens += file.tokens
                continue
            self._free.pop()
            self._began[who] = self._events.now
            self._processor.run(self._work(who, file), partial(self._judged, who, file, is_newcomer))

    def _work(self, who: int, file: File) -> float:
        """Seconds that a file takes: those of its answers that are computed again, and of loading their version."""
        audit, services, lease = self._inputs.audit, self._inputs.services, file.lease
        name = f"{lease.step}/{lease.submission}"
        whole = self._audits.drawn(str(lease.node.number), name, lease.step)
        share = 1.0 if whole else min(1.0, audit.spot_share) if audit.rate > 0 else 0.0
        load_s = self._inputs.machines.load_s if share and self._loaded[who] != lease.version else 0.0
        self._loaded[who] = lease.version
        return load_s + services.judge_s + share * file.tokens * services.judge_token_s

    def _judged(self, who: int, file: File, is_newcomer: bool) -> None:
        now = self._events.now
        took = now - self._began.pop(who)
        if not is_newcomer:
            self._for_newcomers[who].proven_took(took)
        elif self._proven:
            self._for_newcomers[who].newcomer_took(took)
        self._free.append(who)
        self._judged_s += took
        self.waited_s.append(now - file.received)
        self._book.accept(file)
        self._accepted(file)
        self._next()


class Trainer:
    """Waits until a step is collected, trains, and hands its version on."""

    def __init__(
        self,
        inputs: Inputs,
        events: Events,
        book: Book,
        processor: Processor,
        began: Callable[[int], None],
        ended: Callable[[int], None],
        trained: Callable[[int], None],
    ) -> None:
        self._inputs, self._events, self._book, self._processor = inputs, events, book, processor
        self._began, self._ended, self._trained = began, ended, trained
        self.step = 0
        self.busy_s = 0.0
        self.unused_tokens = 0.0
        """Of files that were accepted when their step was being trained already."""
        self._is_training = False
        self._published = 0.0
        self._tokens: dict[int, float] = {}

    def accepted(self, file: File) -> bool:
        """Whether a file came before its step began to train, so that the step is trained on it."""
        lease = file.lease
        if lease.step < self.step + self._is_training:
            self.unused_tokens += file.tokens
            return False
        share = file.signal / lease.groups if self._inputs.terms.online_filter else 1.0
        self._tokens[lease.step] = self._tokens.get(lease.step, 0.0) + share * file.tokens
        return True

    def look(self) -> None:
        """Begins to train if the step has what it needs."""
        terms = self._inputs.terms
        if self._is_training or self.step >= terms.steps:
            return
        tally = self._book.tally(self.step)
        filling = tally.signal if terms.online_filter else tally.groups
        leased = self._book.count_of(self.step).leased
        if not is_collected(filling, tally.groups, leased, needed=terms.groups_per_step, most=terms.max_groups):
            return
        self._is_training = True
        self._began(self.step)
        training = self._inputs.training
        work = training.step_s + training.token_s * self._tokens.pop(self.step, 0.0)
        began = self._events.now
        self._processor.run(work, lambda: self._done(began))

    def _done(self, began: float) -> None:
        self.busy_s += self._events.now - began
        self._is_training = False
        self._ended(self.step)
        self.step += 1
        # The version before is out first.
        self._published = max(self._events.now, self._published) + self._inputs.training.publish_s
        self._events.after(self._published - self._events.now, self._trained, self.step)
        self.look()
