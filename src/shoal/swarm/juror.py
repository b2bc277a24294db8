"""A validator's part in the ledger: it follows the history, checks every entry, votes where it was drawn, signs heads.

Votes come from the validator's own notes, never from what others said. Heads are signed for a history that this
validator has checked from its first entry on, and never for one that contradicts a head it signed before.
"""

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shoal.errors import LedgerError, RolloutError
from shoal.files import write_whole
from shoal.ledger import chain
from shoal.ledger.acts import NO_HASH, Act, Commit, Head, Leaf, Reveal, vote_hash
from shoal.ledger.chain import History
from shoal.ledger.entry import Statement
from shoal.ledger.state import Batch, State
from shoal.swarm.client import Link
from shoal.swarm.history import enter, follow
from shoal.swarm.refusal import Refusal
from shoal.validate.votes import Vote, Votes

# A head is signed once this many entries have come since the last one, and when the run ends.
HEAD_EVERY = 50
FINISH_S, FINISH_LOOK_S = 10.0, 0.2


class Juror:
    """What a validator says on the ledger of the run that it has joined."""

    def __init__(self, link: Link, votes: Votes, kept_head: Path) -> None:
        self._link = link
        self._votes = votes
        self._kept = kept_head
        self._history: History | None = None
        self._signed = -1

    def work(self, *, last: bool = False) -> None:
        """Catches up, votes where it is due, and signs a head now and then, or for sure the `last` time."""
        history = self._follow()
        for act in self._due(history):
            self._say(history, act)
        self._follow()
        if last or history.number - self._signed >= HEAD_EVERY:
            self._sign_head(history)

    def finish(self, steps: int) -> None:
        """Votes on the last steps, which are entered a moment after the last version is out, and signs the end."""
        deadline = time.monotonic() + FINISH_S
        while time.monotonic() < deadline:
            self.work()
            if self._history is not None and _is_over(self._history.state, steps):
                break
            time.sleep(FINISH_LOOK_S)
        self.work(last=True)

    def _follow(self) -> History:
        """Takes the entries that are new."""
        self._history = follow(self._link, self._history)
        self._check_kept(self._history)
        return self._history

    def _due(self, history: History) -> Iterable[Act]:
        """Commitments and votes that this validator owes."""
        me, terms = self._link.key.address, history.state.terms
        for batch in history.state.batches:
            if batch.outcomes or me not in batch.jury or me in batch.reveals:
                continue
            reveal = self._reveal(batch)
            if len(batch.jury) == 1:
                yield reveal
                continue
            late = history.state.clock >= batch.entered + terms.patience
            if me not in batch.commits and not late and not batch.reveals:
                yield Commit(batch=batch.number, hash=vote_hash(history.state.run, me, reveal))
            elif me in batch.commits and (late or len(batch.commits) == len(batch.jury)):
                yield reveal

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
        return vote

    def _salt(self, batch: int) -> str:
        """The same after a restart, and nobody else's to know."""
        card = self._link.card
        secret = f"shoal salt\n{card.run}\n{card.coordinator}\n{batch}\n{self._link.key.export()}"
        return hashlib.sha256(secret.encode()).hexdigest()

    def _sign_head(self, history: History) -> None:
        head = Head(number=history.number, hash=history.last.hash)
        if head.number == self._signed:
            return
        statement = Statement.sign(self._link.key, history.state.run, history.ledger, head)
        write_whole(self._kept, statement.model_dump_json().encode(), durable=True)  # before anybody else has it
        self._say(history, head)
        self._signed = head.number

    def _check_kept(self, history: History) -> None:
        """Refuses a history that is not the one whose head this validator signed before."""
        if not self._kept.exists():
            return
        kept = Statement.model_validate_json(self._kept.read_bytes())
        assert isinstance(kept.act, Head)
        if kept.ledger != history.ledger:
            raise LedgerError(
                f"ledger of {self._link.join_at.url}: is another one than that whose head lies in {self._kept}; was "
                "the run begun anew? Then remove that file"
            )
        chain.check_head(history, kept.author, kept.act)

    def _say(self, history: History, act: Act) -> None:
        with suppress(Refusal, RolloutError):  # somebody was faster, or it is too late: the history says what counts
            enter(self._link, history, act)


def _is_over(state: State, steps: int) -> bool:
    """Whether every step was entered and everything in it settled."""
    return state.clock >= steps - 1 and not any(batch.leaves and not batch.outcomes for batch in state.batches)
