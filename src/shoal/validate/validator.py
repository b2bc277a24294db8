"""The validator: judges every upload before the trainer may read it, and leaves evidence of what it rejects.

Every file goes through the cheap checks; of those that pass, some are drawn to be computed again with the version they
claim, and of the others an answer or two. A node whose files are rejected gets no more leases.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from shoal.errors import ModelError, RolloutError, ShoalError, WaitError, WeightsError
from shoal.exchange.interfaces import RolloutStore, Upload, Version, WeightSource, roots_of
from shoal.files import locked, sha256_file
from shoal.models.load import load, read_weights
from shoal.rollout.record import Submission
from shoal.rundir import TAKEOVER_S, RunDir, limits_of
from shoal.swarm.client import Link
from shoal.swarm.juror import Juror
from shoal.swarm.member import HERE, Reach, ignore_refused
from shoal.tasks.sampler import Table
from shoal.tasks.scorer import Scorer
from shoal.validate.audit import Audits
from shoal.validate.checks import Checks
from shoal.validate.evidence import bundle_of, keep_version, prune_evidence, write_bundle
from shoal.validate.finding import Finding, Verdict
from shoal.validate.votes import Vote, Votes
from shoal.watch.metrics import MetricsWriter
from shoal.watch.status import StatusFile

POLL_S = 0.02
SCORER = "scorer"
# Longer ones would not be a verdict any more: those who read verdicts read only so much.
MAX_REASON = 2000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A file to compute again."""

    upload: Upload
    sha256: str
    submission: Submission
    scored: bool
    """Whether its rewards are known to be right."""
    spot: Sequence[int] = ()
    """The answers that are looked at first; if all of them are right, so is the file."""


@dataclass(slots=True)
class Validator:
    """Judges uploads in the order of their steps."""

    run_dir: RunDir
    channel: WeightSource
    store: RolloutStore
    checks: Checks
    audits: Audits
    status: StatusFile
    metrics: MetricsWriter
    loaded: Version
    strikes: Counter[str] = field(default_factory=Counter)
    put_out: set[str] = field(default_factory=set)
    kept: OrderedDict[Version, dict[str, Tensor]] = field(default_factory=OrderedDict)
    early: dict[tuple[int, int], int] = field(default_factory=dict)
    """Files made with a version that is out and has not come here, and its number."""
    votes: Votes | None = None
    juror: Juror | None = None
    """Speaks for this validator on the ledger, where there is one."""

    def run(self) -> None:
        """Judges until the last version is out."""
        config = self.run_dir.config
        deadline = time.monotonic() + config.wait_s
        while True:
            newest = self.channel.latest()
            if newest is None:
                raise WeightsError("no policy version is published; prepare the run with shoal run")
            if newest.number >= config.steps:
                if self.juror:
                    self.status.working("voting on the last steps")
                    if not self.juror.finish(config.steps):
                        self.metrics.write("note", text="the ledger has not come to its end; start this again to vote")
                self.status.done("the run is complete")
                return
            if self.juror:
                self.juror.prompt(newest.number)
            # Files for steps that are trained by now come too late for anyone.
            uploads = self.store.waiting(newest.number, newest.number + config.async_level)
            early = [upload for upload in uploads if self._is_early(upload, newest)]
            uploads = [upload for upload in uploads if upload not in early]
            if uploads:
                self.judge(uploads)
                deadline = time.monotonic() + config.wait_s
            elif time.monotonic() > deadline:
                raise WaitError(
                    f"validator: no file came within {config.wait_s:.0f} s; is a worker running? (shoal status says; "
                    "wait_s sets the limit)"
                )
            else:
                left = deadline - time.monotonic()
                if early:
                    self.status.waiting(f"the version of {len(early)} files", "relay", left)
                else:
                    self.status.waiting("rollout files", "worker", left)
                time.sleep(POLL_S)

    def _is_early(self, upload: Upload, newest: Version) -> bool:
        return self.early.get((upload.step, upload.submission), newest.number) > newest.number

    def _has_not_come(self, submission: Submission) -> bool:
        """Whether a file's version is out, and its maker only was faster to have it: the relays may be away."""
        newest, number = self.channel.latest(), submission.version
        if newest is None or number <= newest.number or self.channel.version(number) is not None:
            return False
        retracted = self.channel.was_retracted(Version(number, submission.weights))
        return not retracted and self.store.is_out(number)

    def judge(self, uploads: Sequence[Upload]) -> None:
        """Gives a verdict on each upload, but for those whose version is yet to come."""
        drawn: dict[Version, list[Drawn]] = {}
        for upload in uploads:
            self.status.working(f"judging submission {upload.submission} of step {upload.step}")
            began = time.process_time()
            try:
                submission, sha256 = self.store.read(upload)
            except RolloutError as error:
                reason = str(error)[:MAX_REASON]
                broken = Finding("format", "a file is what its lease asks for", upload.path.name, reason)
                self._reject(upload, "", None, broken, False, began)
                continue
            if self._has_not_come(submission):
                self.early[upload.step, upload.submission] = submission.version
                continue
            self.early.pop((upload.step, upload.submission), None)
            finding = self.checks.cheap(submission)
            # What our scorer fails on may have been made up for that: it is computed again before anyone waits for it.
            scored = finding is None or finding.check != SCORER
            if finding and scored:
                self._reject(upload, sha256, submission, finding, False, began)
                continue
            whole = not scored or self.strikes[upload.node] > 0 or self.audits.drawn(upload.node, sha256)
            spot = [] if whole else self.audits.spot(sha256, len(submission.rollouts))
            if whole or spot:
                claimed = Version(submission.version, submission.weights)
                drawn.setdefault(claimed, []).append(Drawn(upload, sha256, submission, scored, spot))
            else:
                self._accept(upload, sha256, submission, False, began)
        for version, files in drawn.items():
            self._audit(version, files)

    def _audit(self, version: Version, files: Sequence[Drawn]) -> None:
        """Computes the files of one version again."""
        try:
            self._load(version)
        except (WeightsError, ModelError) as error:
            for file in files:
                gone = Finding("version", "a file is made with a version that is published", version.number, str(error))
                self._reject(file.upload, file.sha256, file.submission, gone, False, time.process_time())
            return
        for file in files:
            upload, sha256, submission = file.upload, file.sha256, file.submission
            self.status.working(f"computing submission {upload.submission} of step {upload.step} again")
            began = time.process_time()
            if file.spot and self._is_right(submission, file.spot):
                self._accept(upload, sha256, submission, False, began)
                continue
            (finding,) = self.checks.costly([submission])
            if finding is None and not file.scored:
                finding = self.checks.rewards(submission)
            if finding is None:
                self._accept(upload, sha256, submission, True, began)
            else:
                self._reject(upload, sha256, submission, finding, True, began)

    def _is_right(self, submission: Submission, spot: Sequence[int]) -> bool:
        """Whether some answers, taken for a file of their own, hold. One that does not is no verdict yet."""
        (finding,) = self.checks.costly([replace(submission, rollouts=[submission.rollouts[n] for n in spot])])
        return finding is None

    def _load(self, version: Version) -> None:
        """Makes `version` the one that files are computed with; the last few stay in memory."""
        if version == self.loaded:
            return
        if version not in self.kept:
            folder = self.channel.fetch(version)
            self.kept[version] = read_weights(folder, self.run_dir.config.model.dtype)
            while len(self.kept) > self.run_dir.config.async_level + 1:
                self.kept.popitem(last=False)
        self.checks.policy.set_weights(self.kept[version], f"version {version.number}")
        self.loaded = version

    def _accept(self, upload: Upload, sha256: str, submission: Submission, audited: bool, began: float) -> None:
        tokens = sum(len(rollout.completion) for rollout in submission.rollouts)
        verdict = Verdict(True, sha256, audited, samples=len(submission.rollouts), tokens=tokens)
        self._note(upload, Vote("a", sha256, tokens))
        self.store.judge(upload, verdict)
        self._say(upload, submission, audited, None, False, began)

    def _reject(
        self,
        upload: Upload,
        sha256: str,
        submission: Submission | None,
        finding: Finding,
        audited: bool,
        began: float,
    ) -> None:
        evidence = self._keep_evidence(upload, submission, finding, audited)
        verdict = Verdict(False, sha256, audited, finding, evidence)
        blamed = bool(upload.node) and self._is_fault(submission, finding)
        # Without evidence that anyone can replay nobody is accused.
        proof = sha256_file(self.run_dir.path / evidence) if blamed and evidence else ""
        self._note(upload, Vote("r", sha256, 0, proof) if proof else Vote("v", sha256))
        self.store.judge(upload, verdict)
        self._say(upload, submission, audited, verdict, blamed, began)
        if blamed:
            self.strikes[upload.node] += 1
            # Also beyond that number: who was killed between the last strike and the ban makes up for it.
            if self.strikes[upload.node] >= self.run_dir.config.audit.strikes and upload.node not in self.put_out:
                self.put_out.add(upload.node)
                count = self.strikes[upload.node]
                reason = f"{count} files rejected, the last because of {finding}; evidence: {evidence}"
                self.store.ban(upload.node, reason)
                self.metrics.write("banned", node=upload.node, check=finding.check, reason=reason)

    def _note(self, upload: Upload, vote: Vote) -> None:
        if self.votes is not None:
            self.votes.note(upload.step, upload.submission, vote)

    def _is_fault(self, submission: Submission | None, finding: Finding) -> bool:
        """Whether the file's maker is to blame.

        It is not where our own scorer fails, nor where the version that the file was made with was lost here or taken
        back by a trainer that was killed. It is for a version that never was.
        """
        if finding.check != "version" or submission is None:
            return finding.check != SCORER
        claimed = Version(submission.version, submission.weights)
        if self.channel.was_retracted(claimed):
            return False
        newest, there = self.channel.latest(), self.channel.version(claimed.number)
        if there is None:
            return newest is not None and claimed.number > newest.number
        return there != claimed

    def _keep_evidence(self, upload: Upload, submission: Submission | None, finding: Finding, audited: bool) -> str:
        folder = self.run_dir.path / "evidence"
        target = folder / f"step-{upload.step:06d}-{upload.submission:04d}.json"
        try:
            table = self._table_of(submission)
            bundle = bundle_of(self.run_dir.config, upload.path, upload.lease, submission, finding, table)
            write_bundle(bundle, target)
            if audited and submission is not None:
                keep_version(folder, self.channel.fetch(self.loaded), self.loaded)
            prune_evidence(folder, self.run_dir.config.keep.evidence)
        except (OSError, WeightsError) as error:  # no evidence is no reason to accept
            self.metrics.write("note", text=f"no evidence kept of {upload.path.name}: {error}")
            return ""
        return str(target.relative_to(self.run_dir.path))

    def _table_of(self, submission: Submission | None) -> Table | None:
        """What the file's maker had to draw by; without it there is still a verdict, if no such evidence."""
        with suppress(ShoalError):
            return self.checks.table_of(submission.lease) if submission else None
        return None

    def _say(
        self,
        upload: Upload,
        submission: Submission | None,
        audited: bool,
        verdict: Verdict | None,
        blamed: bool,
        began: float,
    ) -> None:
        self.metrics.write(
            "verdict",
            step=upload.step,
            submission=upload.submission,
            node=upload.node,
            accept=verdict is None,
            audited=audited,
            blamed=blamed,
            check=verdict.finding.check if verdict and verdict.finding else "",
            reason=verdict.reason if verdict else "",
            samples=len(submission.rollouts) if submission else 0,
            cpu_s=time.process_time() - began,
            **self.status.shares(),
        )


def past_strikes(path: Path) -> Counter[str]:
    """Rejections that an earlier life of this validator has given, from its metrics."""
    from shoal.watch.metrics import read_metrics

    strikes: Counter[str] = Counter()
    for entry in read_metrics(path):
        if entry["event"] == "verdict" and entry.get("blamed"):
            strikes[entry["node"]] += 1
    return strikes


def start_validator(run: RunDir, reach: Reach = HERE) -> None:
    """Runs the validator of a run in this process until the run is done."""
    config = run.config
    torch.set_num_threads(config.audit.threads)
    taken = f"validator: another one is at work in {run.path}; a run has one validator"
    with (
        locked(run.path / "locks" / "validator", taken, wait_s=TAKEOVER_S),
        run.role("validator") as (status, metrics),
        reach.place(run, "validator", "validator", status, metrics) as place,
    ):
        channel = place.weights
        status.working("loading the base model")
        base = run.base_version(channel)
        policy = load(channel.fetch(base), config.model.dtype)
        store = place.open_store(limits_of(config, policy.vocab), ignore_refused)

        with Scorer(config.tasks) as judge, ExitStack() as lines:
            checks = Checks(config, policy, judge.tasks, judge, roots_of(channel), store.table)
            audits = Audits(config.audit)
            strikes = past_strikes(run.path / "metrics" / "validator.jsonl")
            validator = Validator(run, channel, store, checks, audits, status, metrics, base, strikes)
            if place.link is not None:
                validator.votes = Votes(run.path / "nodes" / "votes.jsonl")
                # A line of its own: the ledger is spoken with while files are judged.
                own = lines.enter_context(Link(place.link.join_at, place.link.key, config.wait_s))
                validator.juror = Juror(own, validator.votes, run.path / "nodes" / "head.json")
            validator.run()
