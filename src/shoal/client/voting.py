"""A validator's votes: follows the ledger, verifies every entry, commits and reveals where it was drawn.

Votes come from the validator's own notes and those of validators of the same owner, never from what others said. The
ledger may be slow or away, most of all one on a chain: files are judged meanwhile, and what is due is said when it is
back.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from shoal.client.client import CoordinatorClient
from shoal.client.ledger import Access, access
from shoal.errors import AwayError, RolloutError
from shoal.ledger.acts import NO_HASH, Act, Commit, Leaf, Reveal, vote_hash
from shoal.ledger.refusal import Refused
from shoal.ledger.state import Batch, State
from shoal.protocol import messages as m
from shoal.protocol.refusal import Refusal
from shoal.validate.evidence.vote_log import Vote, Votes
from shoal.wait import Wait

LOG = logging.getLogger(__name__)
FINISH_LOOK_S = 0.2
# Between two looks while no new version is out: on a chain, what others do takes a block or two.
AGAIN_S = 3.0


class Juror:
    """What a validator says on the ledger of the run that it has joined."""

    def __init__(
        self, link: CoordinatorClient, votes: Votes, kept_head: Path, refresh: Callable[[], None] = lambda: None
    ) -> None:
        """`refresh` brings into `votes` what the validators that this one shares the files with have found."""
        self._link = link
        self._votes = votes
        self._kept = kept_head
        self._refresh = refresh
        self._access: Access | None = None
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self._prompted, self._again_at = -1, 0.0
        self._said = ""
        self._wait_s = 0.0
        self._drawn_at: dict[int, float] = {}
        self.owed: frozenset[tuple[int, int]] = frozenset()
        """Step and number of files that this validator was drawn for, has not judged, and still can."""

    @property
    def _ledger(self) -> Access:
        self._access = self._access or access(self._link, self._kept)
        return self._access

    def prompt(self, version: int) -> None:
        """Has what is due said, in a thread of its own: files are judged meanwhile. What was wrong is raised here, the
        next time."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._failed is not None:
            raise self._failed
        if version == self._prompted and time.monotonic() < self._again_at:
            return
        self._prompted, self._again_at = version, time.monotonic() + AGAIN_S
        self._thread = threading.Thread(target=self._aside, name="juror", daemon=True)
        self._thread.start()

    def _aside(self) -> None:
        try:
            self._work_if_there()
        except Exception as error:
            self._failed = error

    def work(self, *, last: bool = False) -> State:
        """Catches up, votes where it is due, and vouches for the history now and then, or for sure the `last` time."""
        state = self._ledger.catch_up()
        self._refresh()  # after that: what is entered there has its verdicts, and so its notes
        for act in list(self._due(state)):
            with suppress(Refused, Refusal, RolloutError):
                self._ledger.say(act)  # if somebody was faster, or it is too late, the history says what counts
        return self._ledger.vouch(last=last)

    def _work_if_there(self, *, last: bool = False) -> State | None:
        """None, after saying so once, if the ledger is away."""
        try:
            state = self.work(last=last)
        except AwayError as error:
            if str(error) != self._said:
                self._said = str(error)
                LOG.warning("votes wait: %s", error)
            return None
        self._said = ""
        return state

    def finish(self, judge: Callable[[], None], say: Callable[[str], None]) -> bool:
        """Votes on the last steps, after `judge` has judged what is owed, until the last window is closed; signs that.

        False if the ledger did not get any further for too long: the same validator, started again, votes then.
        """
        if self._thread is not None:
            self._thread.join()
        wait, is_over, before = Wait(self._ledger.finish_s, FINISH_LOOK_S), False, (-1, -1)
        while not is_over and wait.left > 0:
            if (state := self._work_if_there()) is not None:
                is_over, now = state.finished, _progress(state)
                if now != before:
                    wait.renew()
                    before = now
                    say(f"waiting for the last windows of the ledger, which is at step {state.clock}")
            if self.owed:
                judge()
            elif not is_over:
                wait.pause()
        self._work_if_there(last=True)
        return is_over

    def _due(self, state: State) -> Iterable[Act]:
        """Commitments and votes that this validator owes."""
        me, terms = self._link.key.address, state.terms
        owed: set[tuple[int, int]] = set()
        for batch in state.batches:
            if batch.outcomes or me not in batch.jury or me in batch.reveals:
                continue
            late = state.clock >= batch.entered + terms.patience
            if len(batch.jury) == 1:
                yield self._reveal(batch)
            elif me in batch.commits:
                if late or len(batch.commits) == len(batch.jury):
                    yield self._reveal(batch)
            elif not late and not batch.reveals:
                if files := self._to_judge(batch):
                    owed |= files
                else:
                    yield Commit(batch=batch.number, hash=vote_hash(state.run, me, self._reveal(batch)))
        self.owed = frozenset(owed)

    def _to_judge(self, batch: Batch) -> set[tuple[int, int]]:
        """Files of a batch that are judged here before this validator votes: void would cost their nodes the work.

        Not those whose bytes are gone, and none for longer than half of what the ledger waits for a vote.
        """
        self._wait_s = self._wait_s or self._link.card.run_config().patience_s
        if time.monotonic() > self._drawn_at.setdefault(batch.number, time.monotonic()) + self._wait_s / 2:
            return set()
        mine = {(batch.step, leaf.submission) for leaf in batch.leaves}
        unjudged = {place for place in mine if self._votes.of(*place) is None}
        if not unjudged:
            return set()
        target = f"/v1/files?first={batch.step}&last={batch.step}"
        listed = self._link.ask(m.FiledList, "GET", target).files
        return unjudged & {(int(file.lease["step"]), int(file.lease["submission"])) for file in listed}

    def _reveal(self, batch: Batch) -> Reveal:
        found = [self._vote(batch.step, leaf) for leaf in batch.leaves]
        return Reveal(
            batch=batch.number,
            votes="".join(vote.letter for vote in found),
            evidence=tuple(vote.evidence for vote in found if vote.letter == "r"),
            salt=NO_HASH if len(batch.jury) == 1 else self._salt(batch.number),
        )

    def _vote(self, step: int, leaf: Leaf) -> Vote:
        """What was found here of a file; one that was not judged here, or is entered with other tokens, is void."""
        vote = self._votes.of(step, leaf.submission)
        if vote is None or (vote.sha256 and vote.sha256 != leaf.sha256):
            return Vote("v", leaf.sha256)
        if vote.letter == "a" and vote.tokens != leaf.tokens:
            return Vote("v", leaf.sha256)
        if vote.letter == "r" and vote.tokens < leaf.tokens:  # a reject costs by the tokens
            return Vote("v", leaf.sha256)
        return vote

    def _salt(self, batch: int) -> str:
        """The same after a restart, and nobody else's to know."""
        card = self._link.card
        secret = f"shoal salt\n{card.run}\n{card.coordinator}\n{batch}\n{self._link.key.export()}"
        return hashlib.sha256(secret.encode()).hexdigest()


def _progress(state: State) -> tuple[int, int]:
    """Grows with whatever is entered, but for heads."""
    return len(state.batches), sum(len(b.commits) + len(b.reveals) + bool(b.outcomes) for b in state.batches)
