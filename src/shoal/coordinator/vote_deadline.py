"""When the ledger's clock may advance: no validator is overdue for a vote that it could not have cast yet.

The clock counts steps, and after some of them a batch is settled with the votes that are there. Steps that were noted
while the ledger was away would all be entered at once, and every vote on them would come too late. So the next step
waits until the validators that were drawn have spoken, for a bounded time that runs only while the ledger is there.
"""

import time
from collections.abc import Callable, Collection, Iterator

from shoal.ledger.state import Batch, State


class Patience:
    """How long each batch could be seen by its validators, and whether that is long enough."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._seen_s: dict[int, float] = {}
        self._looked: float | None = None

    def pause(self) -> None:
        """The ledger is away: nobody is waited for meanwhile, and nobody is late."""
        self._looked = None

    def look(self, state: State) -> None:
        """The ledger is there: time runs for every batch that is not settled."""
        now = self._clock()
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        self._seen_s = {batch.number: self._seen_s.get(batch.number, -passed) + passed for batch in unsettled(state)}

    def holds(self, state: State, step: int, present: Collection[str]) -> bool:
        """Whether the clock has to wait before it goes on to a step.

        A validator that is `present` is waited for, and so is an absent one without whom there is no quorum. Both have
        the limit to commit, and as long again to reveal: one that never speaks cannot stop the ledger.
        """
        for batch in unsettled(state):
            missing, limit_s = missing_at(state, batch, step), self._limit_s
            if step >= batch.entered + 2 * state.terms.patience:
                limit_s *= 2
            if not missing or self._seen_s.get(batch.number, 0.0) >= limit_s:
                continue
            if len(batch.jury) - len(missing) < state.terms.quorum or missing & set(present):
                return True
        return False


def unsettled(state: State) -> Iterator[Batch]:
    return (batch for batch in state.batches if batch.leaves and not batch.outcomes)


def first_unsettled(state: State) -> int:
    """The first step that is not settled, or not entered yet."""
    return min((batch.step for batch in unsettled(state)), default=state.clock + 1 if state.batches else 0)


def missing_at(state: State, batch: Batch, step: int) -> set[str]:
    """Validators who can speak on a batch now, have not yet, and could not any more once the clock is at a step."""
    patience, jury = state.terms.patience, set(batch.jury)
    if step <= state.clock:
        return set()
    if step >= batch.entered + 2 * patience:
        return (jury if len(jury) == 1 else set(batch.commits)) - batch.reveals.keys()
    if step >= batch.entered + patience and len(jury) > 1 and not batch.reveals:
        return jury - batch.commits.keys()
    return set()
