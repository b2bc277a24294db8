"""What the coordinator tells its ledger, turned into acts: submissions become batches, verdicts become votes.

Everything may be told again. `flush` makes what was told durable; until it returns nothing of it may be forgotten.
Here the validators' keys lie beside the coordinator's, as in a run on one machine. A validator elsewhere signs its own
votes and hands them in as statements (`SqliteLedger.take`) or sends them to the chain itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shoal.errors import LedgerError
from shoal.files import write_whole
from shoal.keys import Key
from shoal.ledger.acts import (
    MOST_LEAVES,
    NO_HASH,
    Commit,
    Leaf,
    Register,
    Reveal,
    Settle,
    Work,
    beacons,
    vote_hash,
)
from shoal.ledger.merkle import keccak_text, keccak_words
from shoal.ledger.state import Batch
from shoal.ledger.store import SqliteLedger

LINKS = 1 << 15
"""Batches for which a run has beacons, unless told otherwise; making them takes a quarter of a second."""
Place = tuple[int, int]
"""Step and number of a submission."""


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict: the vote, and for a reject the hash of its evidence."""

    vote: str
    evidence: str


@lru_cache(maxsize=4)
def beacon_links(key: Key, run: str, count: int = LINKS) -> list[str]:
    """The coordinator's beacons for a run, from its key: there is nothing else to keep."""
    secret = keccak_text(key.sign(f"shoal ledger beacon 1\n{run}".encode()))
    return [link.hex() for link in beacons(secret, count)]


class RunLedger:
    """A run's ledger, as the coordinator speaks to it."""

    def __init__(
        self, ledger: SqliteLedger, key: Key, validators: Sequence[Key], waiting: Path, links: int = LINKS
    ) -> None:
        self.ledger, self._key, self._file = ledger, key, waiting
        self._validators = {validator.address: validator for validator in validators}
        self._links = beacon_links(key, ledger.run, links)
        state = ledger.state
        if state.terms.beacon != self._links[0]:
            raise LedgerError(
                f"run {ledger.run}: its beacons are not those of {key.address}; give the key that opened it"
            )
        self._verdicts = _read(waiting)
        self._new: dict[Place, Leaf] = {}
        self._known = {(batch.step, leaf.submission) for batch in state.batches for leaf in batch.leaves}

    def register(self, node: str, role: str, time: float) -> None:  # noqa: ARG002
        """A node that joined. The time is the entry's own."""
        state = self.ledger.state
        if role == "validator" and node not in state.judges:
            self.ledger.enter(self._key, Register(node=node, role="validator"))
        elif node not in state.accounts:
            self.ledger.enter(self._key, Register(node=node))

    def submitted(
        self,
        node: str,
        step: int,
        submission: int,
        sha256: str,
        groups: int,  # noqa: ARG002
        tokens: int = 0,
    ) -> None:
        """A file that was handed in, with the tokens that its node says it has."""
        if (step, submission) not in self._known:
            self._new[step, submission] = Leaf(submission=submission, node=node, sha256=sha256, tokens=tokens)

    def verdict(
        self,
        node: str,  # noqa: ARG002
        step: int,
        submission: int,
        accept: bool,
        reason: str,  # noqa: ARG002
        judge: str,  # noqa: ARG002
        evidence: str = "",
    ) -> None:
        """A reject without evidence is void: the node loses the work and nothing else."""
        vote = "a" if accept else "r" if evidence else "v"
        self._verdicts.setdefault((step, submission), Told(vote, evidence))

    def flush(self) -> None:
        """Enters what was told. After it, what still waits for others is on the disk."""
        for step in sorted({step for step, _ in self._new}):
            leaves = [leaf for (of, _), leaf in sorted(self._new.items()) if of == step]
            for first in range(0, len(leaves), MOST_LEAVES):
                self._work(step, leaves[first : first + MOST_LEAVES])
        self._known |= set(self._new)
        self._new.clear()
        for batch in self.ledger.state.batches:
            if batch.leaves and not batch.outcomes:
                self._judge(batch)
        kept = [[*place, told.vote, told.evidence] for place, told in self._verdicts.items()]
        write_whole(self._file, json.dumps(kept).encode(), durable=True)

    def advance(self, step: int) -> None:
        """Moves the clock on without work, as after the last step, so that windows close."""
        while self.ledger.state.clock < step:
            self._work(self.ledger.state.clock + 1, [])

    def _work(self, step: int, leaves: Sequence[Leaf]) -> None:
        if leaves:
            self.advance(step - 1)
        number = len(self.ledger.state.batches)
        if number + 1 >= len(self._links):
            raise LedgerError(
                f"run {self.ledger.run}: all {len(self._links) - 1} beacons are used up; start another run"
            )
        self.ledger.enter(
            self._key, Work(batch=number, step=step, leaves=tuple(leaves), beacon=self._links[number + 1])
        )

    def _judge(self, batch: Batch) -> None:
        """Votes and settles once every submission has its verdict, or the others' patience is over."""
        state = self.ledger.state
        places = [(batch.step, leaf.submission) for leaf in batch.leaves]
        overdue = state.clock >= batch.entered + 2 * state.terms.patience
        if not overdue and not all(place in self._verdicts for place in places):
            return
        told = [self._verdicts.get(place, Told("v", "")) for place in places]
        votes = "".join(one.vote for one in told)
        evidence = tuple(one.evidence for one in told if one.vote == "r")
        own = [self._validators[who] for who in batch.jury if who in self._validators]
        acts = {key: self._sealed(key, batch.number, votes, evidence) for key in own}
        if len(batch.jury) > 1 and state.clock < batch.entered + state.terms.patience:
            for key, act in acts.items():
                self.ledger.enter(key, Commit(batch=batch.number, hash=vote_hash(state.run, key.address, act)))
        for key, act in acts.items():
            if len(batch.jury) == 1 or key.address in batch.commits:
                self.ledger.enter(key, act)
        if overdue or len(batch.reveals) == len(batch.jury):
            self.ledger.enter(self._key, Settle(batch=batch.number))
            for place in places:
                self._verdicts.pop(place, None)

    def _sealed(self, key: Key, batch: int, votes: str, evidence: tuple[str, ...]) -> Reveal:
        """The same salt every time, so that votes can be told twice; nobody without the key can guess it."""
        salt = NO_HASH if len(self.ledger.state.batches[batch].jury) == 1 else self._salt(key, batch)
        return Reveal(batch=batch, votes=votes, evidence=evidence, salt=salt)

    def _salt(self, key: Key, batch: int) -> str:
        return keccak_words(keccak_text(key.sign(f"shoal ledger salt 1\n{self.ledger.name}".encode())), batch).hex()


def _read(path: Path) -> dict[Place, Told]:
    try:
        return {(step, number): Told(vote, evidence) for step, number, vote, evidence in json.loads(path.read_bytes())}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise LedgerError(
            f"{path}: cannot be read ({error}); verdicts that it held are void, remove it to go on"
        ) from None
