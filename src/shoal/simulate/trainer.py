"""The trainer: waits for a step's groups, trains on them, and hands the version on."""

from collections.abc import Callable

from shoal.protocol.pacing import is_collected
from shoal.simulate.book import Book, File
from shoal.simulate.events import Events
from shoal.simulate.inputs import Inputs
from shoal.simulate.processor import Processor


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
