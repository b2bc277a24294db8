"""Disputes: challenge a verdict on the ledger, and rule on challenges as the arbiter.

Anyone who has joined may challenge a verdict. The arbiter judges the file itself, by nothing that the challenger or a
validator wrote: the bytes are those whose hash is on the ledger, the lease is the one that the coordinator signed, the
config is the run's. What a challenge names as evidence is for people to read.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import trusted
from shoal.client.ledger import ASK_S, access
from shoal.client.run_status import named_submission
from shoal.coordinator.retention import is_final
from shoal.crypto.keys import Key
from shoal.errors import LedgerError, RolloutError, ShoalError
from shoal.files import sha256_file, write_whole
from shoal.ledger.acts import NO_HASH, Challenge, Leaf, Rule
from shoal.ledger.explain import OUTCOMES
from shoal.ledger.state import Batch
from shoal.protocol import messages as m
from shoal.protocol.lease import Lease
from shoal.protocol.signed_lease import SignedLease
from shoal.protocol.verdict import Finding, is_blame
from shoal.rollout_size import MAX_BYTES
from shoal.rundir import DECIDES_NO_VERDICT, RunDir, changes
from shoal.tasks.difficulty import Table
from shoal.text import one_line
from shoal.validate.evidence.arbiter import EVIDENCE, TableOf, ruling
from shoal.validate.evidence.bundle import bundle_name, read_bundle

JudgeFile = Callable[[Path, SignedLease, TableOf], Finding | None]


def _as_today(*_: object) -> None:
    """Of a run that never changed what it judges by."""


def challenge(join: str, submission: str, claim: str, evidence: Path | None, key: Key, console: Console) -> None:
    """Says on the ledger what the verdict on a submission, STEP/NUMBER, should have been."""
    if claim not in ("accept", "reject"):
        raise LedgerError(f"--claim {claim}: give accept or reject")
    if evidence is not None and not evidence.is_file():
        raise LedgerError(f"evidence {evidence}: no such file; give a bundle, or none")
    step, number = named_submission(submission)
    with CoordinatorClient(trusted(join), key, ASK_S) as link:
        ledger = access(link)
        for batch in ledger.catch_up().batches:
            for index, leaf in enumerate(batch.leaves):
                if (batch.step, leaf.submission) == (step, number):
                    letter: Literal["a", "r"] = "a" if claim == "accept" else "r"
                    proof = NO_HASH if evidence is None else sha256_file(evidence)
                    ledger.say(Challenge(batch=batch.number, index=index, claim=letter, evidence=proof))
                    console.print(f"challenged: {submission} is {OUTCOMES[batch.outcomes[index]]}, should be {claim}ed")
                    return
    raise LedgerError(f"submission {submission}: is not on the ledger yet; it is entered when its step is over")


@dataclass(slots=True)
class Rulings:
    """How many challenges the arbiter upheld, refuted and left open."""

    upheld: int = 0
    refuted: int = 0
    left_open: int = 0


@dataclass(slots=True)
class Files:
    """The files that challenges are about, each judged once however many object to its verdict."""

    link: CoordinatorClient
    run: RunDir
    judge_file: JudgeFile
    judge_as_begun: JudgeFile = _as_today
    _found: dict[tuple[int, int], Finding | Exception | None] = field(default_factory=dict)

    def judged(self, batch: Batch, index: int) -> Finding | None:
        """What the arbiter finds wrong with a file; an error if it cannot be judged."""
        place = batch.number, index
        if place not in self._found:
            try:
                self._found[place] = self._judge(batch.step, batch.leaves[index], self.judge_file)
            except Exception as error:  # whatever one file does to its reader, the others are ruled on
                self._found[place] = error
        if isinstance(found := self._found[place], Exception):
            raise found
        return found

    def was_blame(self, batch: Batch, index: int) -> bool:
        """Whether a file that is right was one to blame by the honest rates that the run began with: a validator that
        rejected it then judged as it had to."""
        return is_blame(self._judge(batch.step, batch.leaves[index], self.judge_as_begun))

    def _judge(self, step: int, leaf: Leaf, judge_file: JudgeFile) -> Finding | None:
        signed = self._lease(step, leaf)
        with TemporaryDirectory(prefix="shoal-arbiter-") as scratch:
            path = Path(scratch) / f"{leaf.submission:04d}.parquet"
            self._fetch(step, leaf, path)
            return judge_file(path, signed, lambda lease: self._table(lease, signed))

    def _lease(self, step: int, leaf: Leaf) -> SignedLease:
        answer = self.link.ask(m.LeaseOut, "GET", f"/v1/leases/{step}/{leaf.submission}")
        signed = SignedLease.from_tree(answer.lease)
        signed.check(self.link.card.coordinator)
        signed.check_fits(self.run.config)
        lease, expected = signed.lease, (self.link.card.run, leaf.node, step, leaf.submission)
        if (lease.run, lease.node, lease.step, lease.submission) != expected:
            raise RolloutError(f"{lease} of run {lease.run}: the ledger has {expected}")
        return signed

    def _fetch(self, step: int, leaf: Leaf, to: Path) -> None:
        """The bytes whose hash is on the ledger: the coordinator's, or those in a bundle of this run's directory."""
        try:
            self.link.fetch(f"/v1/files/{step}/{leaf.submission}", to, MAX_BYTES, leaf.sha256)
        except ShoalError as error:
            data = None
            with suppress(RolloutError):
                data = read_bundle(self.run.path / EVIDENCE / bundle_name(step, leaf.submission)).file
            if data is None or hashlib.sha256(data).hexdigest() != leaf.sha256:
                raise RolloutError(f"its bytes are missing ({error})") from None
            write_whole(to, data)

    def _table(self, lease: Lease, signed: SignedLease) -> Table | None:
        if self.run.config.sampler.kind == "uniform":
            return None
        found, root = self.link.table(lease.version), signed.root
        if found.root != root:
            raise RolloutError(f"{lease}: its table is that of {found.root[:12]}, version {lease.version} is {root}")
        return found.table


def arbitrate(
    join: str,
    run: RunDir,
    key: Key,
    judge_file: JudgeFile,
    console: Console,
    judge_as_begun: JudgeFile = _as_today,
) -> Rulings:
    """Rules on every open challenge by what the challenged file itself shows.

    `judge_file` goes by the newest honest rates, which acquit the most nodes; `judge_as_begun` by those that the run
    began with, which excuse validators that rejected what only the newer ones acquit.

    Each is handled on its own. One that cannot be ruled on, because bytes, lease or version are gone or because the
    file shows neither, is left open with a line that says why: nobody is ruled against.
    """
    counts = Rulings()
    with CoordinatorClient(trusted(join), key, ASK_S) as link:
        ledger = access(link)
        state = ledger.catch_up()
        if key.address != state.terms.arbiter:
            raise LedgerError(f"{key.address}: is not this run's arbiter, which is {state.terms.arbiter}")
        if differs := changes(run.config, link.card.run_config(), DECIDES_NO_VERDICT):
            lines = "\n".join(differs)
            raise LedgerError(
                f"run {run.path}: is not the run at {link.join_at.url}; these settings of its run card differ\n{lines}"
            )
        files = Files(link, run, judge_file, judge_as_begun)
        for batch in [batch for batch in state.batches if batch.challenges and not is_final(state, batch)]:
            ruled = set(batch.rulings)
            for (index, who), one in list(batch.challenges.items()):
                if index in ruled or (index, who) in batch.answered:
                    continue
                name = f"{batch.step}/{batch.leaves[index].submission}"
                excused = False
                try:
                    finding = files.judged(batch, index)
                    upheld = ruling(one.claim, finding)
                    if upheld is not None:
                        excused = upheld and one.claim == "a" and files.was_blame(batch, index)
                        number = batch.number
                        ledger.say(Rule(batch=number, index=index, challenger=who, upheld=upheld, excused=excused))
                except Exception as error:  # nothing that one stranger files keeps others from a ruling
                    _say(console, f"{name}: challenge of {who} left open: {type(error).__name__}: {error}")
                    counts.left_open += 1
                    continue
                shown = str(finding) if finding else "nothing is wrong with the file"
                if excused:
                    shown += "; by the honest rates that the run began with it was, so who rejected it is excused"
                if upheld is None:
                    _say(
                        console,
                        f"{name}: challenge of {who} left open, for the file shows no fault of its node: {shown}",
                    )
                    counts.left_open += 1
                    continue
                _say(console, f"{name}: challenge of {who} {'upheld' if upheld else 'refuted'}: {shown}")
                counts.upheld, counts.refuted = counts.upheld + upheld, counts.refuted + (not upheld)
                if upheld:
                    ruled.add(index)
    return counts


def _say(console: Console, text: str) -> None:
    console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)
