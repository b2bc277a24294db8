"""Verdict writer: what a validator found is noted for its votes, kept as evidence, and told to the coordinator.

The order survives a kill at any point. The vote and the bundle are on disk before anybody hears of the verdict, so the
ledger is told what the coordinator was told. A file without a verdict is listed again, and judged again.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field

from shoal.errors import ShoalError, WeightsError
from shoal.files import sha256_file
from shoal.protocol.judge_note import MAX_NATS, JudgeNote, WeighedNote
from shoal.protocol.numeric_evidence import NumericEvidence
from shoal.protocol.stores import RolloutStore, Upload, Version, WeightSource
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import NUMBERS, ROUNDING, Finding, Verdict, is_blame
from shoal.protocol.work import NO_WORK, Work, work_of
from shoal.rundir import RunDir
from shoal.tasks.difficulty import Table
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.bundle import bundle_name, bundle_of, has_room, prune_evidence, write_bundle
from shoal.validate.evidence.kept_versions import keep_version, prune_versions
from shoal.validate.evidence.vote_log import Vote, Votes
from shoal.validate.numerics.judge import Weighed


@dataclass(frozen=True, slots=True)
class Judged:
    """A file that was looked at, and what is said of it."""

    upload: Upload
    submission: Submission | None
    """None where it could not be read."""
    sha256: str
    finding: Finding | None
    """None accepts it."""
    audited: bool
    began: float
    """CPU time of this process when its turn came."""
    numbers: NumericEvidence | None = None
    weighed: Weighed | None = None
    computed: Work = NO_WORK
    """What was computed to judge it."""

    @property
    def tokens(self) -> int:
        return sum(rollout.drawn_count for rollout in self.submission.rollouts) if self.submission else 0


@dataclass(slots=True)
class VerdictWriter:
    """Gives verdicts, each with its vote and, for a rejected file, its evidence."""

    run_dir: RunDir
    channel: WeightSource
    store: RolloutStore
    checks: Checks
    status: StatusFile
    metrics: MetricsWriter
    votes: Votes | None = None
    shares: bool = False
    """Whether other validators of the same owner judge a part of the files, and go by what is found here."""
    banned: set[str] = field(default_factory=set)

    def accept(self, judged: Judged) -> None:
        assert judged.submission is not None
        samples = len(judged.submission.rollouts)
        vote = Vote("a", judged.sha256, judged.tokens)
        self._note(judged.upload, vote)
        verdict = Verdict(
            True, judged.sha256, judged.audited, samples=samples, tokens=judged.tokens, numbers=judged.numbers
        )
        self._give(judged, verdict, vote, blamed=False)

    def void(self, judged: Judged) -> None:
        """For a file that could not be fetched or read: no strike, no accusation, no evidence, and no pay."""
        vote = Vote("v", "")
        self._note(judged.upload, vote)
        self._give(judged, Verdict(False, "", False, judged.finding), vote, blamed=False)

    def reject(self, judged: Judged, *, whole: bool) -> tuple[bool, str]:
        """Whether the file's maker is to blame, and where the evidence is; `whole` evidence has the samples, too."""
        assert judged.finding is not None
        evidence = self._keep_evidence(judged, judged.finding, whole=whole)
        blamed = self._is_fault(judged.submission, judged.finding)
        # On the ledger nobody is accused of what the file's bytes do not show, such as which versions were published.
        accuses = blamed and evidence and is_blame(judged.finding)
        proof = sha256_file(self.run_dir.path / evidence) if accuses else ""
        # A reject costs a multiple of what the file would have brought, and one that is put right is paid.
        tokens = judged.tokens
        vote = Vote("r" if proof else "v", judged.sha256, tokens, proof)
        self._note(judged.upload, vote)
        verdict = Verdict(
            False, judged.sha256, judged.audited, judged.finding, evidence, tokens=tokens, numbers=judged.numbers
        )
        self._give(judged, verdict, vote, blamed=blamed)
        return blamed, evidence

    def ban(self, node: str, check: str, reason: str, rates: int | None = None) -> None:
        """Tells the coordinator that a node gets no more leases, once in a life of this process; `rates` is the version
        of the honest rates that speak against it, none if it is banned whatever they say."""
        if node not in self.banned:
            self.store.ban(node, reason, rates)
            self.banned.add(node)
            self.metrics.write("banned", node=node, check=check, reason=reason)

    def _note(self, upload: Upload, vote: Vote) -> None:
        if self.votes is None:
            return
        known = self.votes.of(upload.step, upload.submission)
        if self.shares and vote.letter == "v" and known is not None:
            return  # another one was faster; if this verdict stands after all, its note brings the vote (`PeerNotes`)
        self.votes.note(upload.step, upload.submission, vote)

    def _give(self, judged: Judged, verdict: Verdict, vote: Vote, *, blamed: bool) -> None:
        upload, finding, size = judged.upload, verdict.finding, 0
        with suppress(OSError):  # one that could not be read may be gone
            size = judged.upload.path.stat().st_size
        self.store.judge(upload, verdict, self._for_others(judged, vote, blamed=blamed) if self.shares else None)
        self.metrics.write(
            "verdict",
            step=upload.step,
            submission=upload.submission,
            node=upload.node,
            accept=verdict.accept,
            audited=verdict.audited,
            blamed=blamed,
            check=finding.check if finding else "",
            rates=self.checks.rates.version,
            reason=verdict.reason,
            samples=len(judged.submission.rollouts) if judged.submission else 0,
            cpu_s=time.process_time() - judged.began,
            generated=work_of(judged.submission.rollouts if judged.submission else ()).to_json(),
            checked=judged.computed.to_json(),
            file_bytes=size,
            **self.status.shares(),
        )

    def _for_others(self, judged: Judged, vote: Vote, *, blamed: bool) -> JudgeNote:
        """What the validators that share the files are told."""
        weighed = None
        if judged.weighed is not None:
            nats = {bet: round(min(max(won, -MAX_NATS), MAX_NATS), 4) for bet, won in judged.weighed.nats.items()}
            weighed = WeighedNote(nats=nats, tokens=judged.weighed.tokens, rates=self.checks.rates.version)
        return JudgeNote(
            letter=vote.letter,
            tokens=vote.tokens,
            proof=vote.evidence,
            blamed=blamed,
            check=judged.finding.check if blamed and judged.finding else "",
            audited=judged.audited,
            weighed=weighed,
        )

    def _is_fault(self, submission: Submission | None, finding: Finding) -> bool:
        """Whether the file's maker is to blame.

        It is not where our own scorer fails, nor where the version that the file was made with was lost here or taken
        back by a trainer that was killed. It is for a version that never was.
        """
        if finding.check != "version" or submission is None:
            return is_blame(finding)
        return any(self._never_was(Version(span.version, span.weights)) for span in submission.spans)

    def _never_was(self, claimed: Version) -> bool:
        if self.channel.was_retracted(claimed):
            return False
        newest, there = self.channel.latest(), self.channel.version(claimed.number)
        if there is None:
            return newest is not None and claimed.number > newest.number
        return there != claimed

    def _keep_evidence(self, judged: Judged, finding: Finding, *, whole: bool) -> str:
        """Where the bundle is, relative to the run; empty if the disk or a missing version prevents one."""
        folder, config = self.run_dir.path / "evidence", self.run_dir.config
        upload, submission = judged.upload, judged.submission
        target = folder / bundle_name(upload.step, upload.submission)
        try:
            table = self._table_of(submission)
            whole = whole and has_room(folder)
            rates = self.checks.rates if finding.check in (NUMBERS, ROUNDING) else None
            who = self.store.signer
            about = (config, upload.path, upload.lease, submission, finding, table)
            bundle = bundle_of(*about, whole=whole, rates=rates, coordinator=who)
            write_bundle(bundle, target)
            if judged.audited and submission is not None and is_blame(finding):
                for span in submission.spans:
                    version = Version(span.version, span.weights)
                    keep_version(folder, self.channel.fetch(version), version)
            open_from = upload.step - config.ledger.challenge_steps
            prune_evidence(folder, min(open_from, upload.step - config.keep.evidence))
            prune_versions(folder, open_from - config.async_level, config.keep.evidence_versions)
        except (OSError, WeightsError) as error:  # lost evidence does not turn a reject into an accept
            self.metrics.write("note", text=f"no evidence kept of {upload.path.name}: {error}")
            return ""
        return str(target.relative_to(self.run_dir.path))

    def _table_of(self, submission: Submission | None) -> Table | None:
        """What the file's maker had to draw by; without it there is still a verdict, if no such evidence."""
        with suppress(ShoalError):
            return self.checks.table_of(submission.lease) if submission else None
        return None
