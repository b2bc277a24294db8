"""The validator: judges every upload before the trainer may read it, and leaves evidence of what it rejects.

Files are judged one by one, those of nodes with accepted files first. Every file goes through the checks that nothing
in it can make long; some are drawn to be computed again with the version they claim, and of the others a few
answers; answers are scored last, when it is known that they were drawn. A node whose files are rejected gets no more
leases.

Only what a file's bytes show is blame. A file that cannot be fetched or read here is tried again, and then void.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from shoal.client.client import CoordinatorClient
from shoal.client.honest_rates import RatesFollower
from shoal.client.voting import Juror
from shoal.errors import ModelError, RolloutError, ShoalError, UnreadError, WeightsError
from shoal.files import locked, sha256_file
from shoal.models.load import load_as, read_weights
from shoal.protocol.rates.rates_file import read_architecture
from shoal.protocol.stores import RolloutStore, Upload, Version, WeightSource, roots_of
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import MARGIN, ROUNDING, Finding, Verdict, is_blame
from shoal.roles.session import JoinOptions, ignore_refused
from shoal.rundir import TAKEOVER_S, RunDir, limits_of
from shoal.tasks.difficulty import Table
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile
from shoal.telemetry.waiting import Patience
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.bundle import (
    bundle_name,
    bundle_of,
    has_room,
    keep_version,
    prune_evidence,
    write_bundle,
)
from shoal.validate.evidence.vote_log import Vote, Votes
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.evidence_log import EvidenceLog
from shoal.validate.numerics.judge import VOID_NATS, Weighed, finding_of
from shoal.validate.queue import PROVEN, TimeBudget, in_turn

POLL_S = 0.02
# How long files are judged before it is asked whether better ones have come.
RELIST_S = 0.5
SCORER, UNREAD = "scorer", "unread"
# Longer ones would not be a verdict any more: those who read verdicts read only so much.
MAX_REASON = 2000
# A file that could not be fetched or read is tried so often, with pauses that double from this one.
MAX_TRIES = 5
FIRST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Put:
    """A file that was not judged: how often it was tried, and when it is due again."""

    tries: int
    due: float


@dataclass(slots=True)
class Validator:
    """Judges uploads, each of them once; who has shown the most comes first."""

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
    postponed: dict[tuple[int, int], Put] = field(default_factory=dict)
    budget: TimeBudget = field(default_factory=TimeBudget)
    votes: Votes | None = None
    evidence: EvidenceLog = field(init=False)
    """Numeric evidence against each node, over its life."""
    rates: RatesFollower | None = None
    """Brings newer honest rates, where numbers are judged by them."""
    juror: Juror | None = None
    """Speaks for this validator on the ledger, where there is one."""

    def __post_init__(self) -> None:
        self.evidence = EvidenceLog(self.run_dir.path / "nodes" / "evidence.jsonl")

    def run(self) -> None:
        """Judges until the last version is out."""
        config = self.run_dir.config
        patience = Patience(self.metrics, config.wait_s)
        while True:
            newest = self.channel.latest()
            if newest is None:
                raise WeightsError("no policy version is published; prepare the run with shoal run")
            if newest.number >= config.steps:
                self._vote_on_the_last()
                self.status.done("the run is complete")
                return
            if self.juror:
                self.juror.prompt(newest.number)
            uploads = self._listed(newest.number)
            due = [upload for upload in uploads if not self._is_early(upload, newest) and self._is_due(upload)]
            if due:
                self.judge(due, RELIST_S)
                patience.progressed()
                continue
            early = sum(self._is_early(upload, newest) for upload in uploads)
            if early:
                what, who = f"the version of {early} files", "relay"
            elif uploads:
                what, who = f"{len(uploads)} files that could not be fetched or read", "coordinator"
            else:
                what, who = "rollout files", "worker"
            self.status.waiting(what, who, None)
            patience.waits(what)
            # Files that are there and not due are listed at once, without the coordinator's own wait for new ones.
            time.sleep(RELIST_S if uploads else POLL_S)

    def _is_due(self, upload: Upload) -> bool:
        put = self.postponed.get((upload.step, upload.submission))
        return put is None or time.monotonic() >= put.due

    def _vote_on_the_last(self) -> None:
        """Takes part in the ledger until the last windows are closed."""
        if self.juror is None:
            return
        steps = self.run_dir.config.steps
        self.status.working("voting on the last steps")
        if not self.juror.finish(lambda: self.judge(self._listed(steps)), self.status.working):
            self.metrics.write("note", text="the ledger has not come to its end; start this again to vote")

    def _listed(self, newest: int) -> list[Upload]:
        """Files to judge: those of steps that are not trained yet, and older ones that this validator was drawn for.

        Other files for trained steps come too late for anyone.
        """
        owed = self.juror.owed if self.juror else frozenset()
        first = min([newest, *(step for step, _ in owed)])
        uploads = self.store.waiting(first, newest + self.run_dir.config.async_level)
        return [upload for upload in uploads if upload.step >= newest or (upload.step, upload.submission) in owed]

    def _is_early(self, upload: Upload, newest: Version) -> bool:
        return self.early.get((upload.step, upload.submission), newest.number) > newest.number

    def _has_not_come(self, submission: Submission) -> bool:
        """Whether a file's version is out, and its maker only was faster to have it: the relays may be away."""
        newest, number = self.channel.latest(), submission.version
        if newest is None or number <= newest.number or self.channel.version(number) is not None:
            return False
        retracted = self.channel.was_retracted(Version(number, submission.weights))
        return not retracted and self.store.is_out(number)

    def judge(self, uploads: Sequence[Upload], seconds: float = inf) -> None:
        """Judges uploads in turn, until all have had theirs or the time is up: then better ones may have come."""
        until = time.monotonic() + seconds
        if self.rates and (newer := self.rates.newer()):
            self.checks.judge_by(newer)
            self.metrics.write("note", text=f"numbers are judged by version {newer.version} of the honest rates")
        for upload in in_turn(uploads, self._rank):
            self.status.working(f"judging submission {upload.submission} of step {upload.step}")
            began = time.monotonic()
            if not self._judge(upload):
                self.budget.spend(upload.node, time.monotonic() - began)
            if time.monotonic() >= until:
                return

    def _rank(self, upload: Upload) -> int:
        """What an upload's maker has shown, here as well; one whose files took long for nothing comes last."""
        if self.budget.left(upload.node, upload.record) <= 0:
            return -1
        return 0 if self.strikes[upload.node] else upload.record

    def _judge(self, upload: Upload) -> bool:
        """Gives a verdict on an upload, unless its version is yet to come or it cannot be read now. Was it accepted?"""
        began = time.process_time()
        try:
            submission, sha256 = self.store.read(upload)
        except UnreadError as error:
            return self._postpone(upload, error, began)
        except RolloutError as error:
            reason = str(error)[:MAX_REASON]
            broken = Finding("format", "a file is what its lease asks for", upload.path.name, reason)
            return self._reject(upload, "", None, broken, False, began)
        if self._has_not_come(submission):
            self.early[upload.step, upload.submission] = submission.version
            return True
        self.early.pop((upload.step, upload.submission), None)
        if finding := self.checks.formal(submission):
            return self._reject(upload, sha256, submission, finding, False, began)
        whole = self.strikes[upload.node] > 0 or self.audits.drawn(upload.node, sha256, upload.step)
        if not whole:
            first = self.audits.spot(sha256, [len(rollout.completion) for rollout in submission.rollouts])
        else:
            first = self.audits.first_look(sha256, len(submission.rollouts)) if upload.record < PROVEN else []
        try:
            if self.checks.numbers is not None:
                return self._judge_by_weight(upload, sha256, submission, first, whole, began)
            # Whether answers were drawn comes before what they earn: those that were made up can take long to score.
            if first and (finding := self._computed(submission, first)):
                whole = True
                if (
                    finding.sample is not None
                    and (finding := self._of_group(submission, finding.sample))
                    and is_blame(finding)
                ):
                    return self._reject(upload, sha256, submission, finding, True, began)
            near = self._computed(submission) if whole else None
            if near and is_blame(near):
                return self._reject(upload, sha256, submission, near, True, began)
            finding = self.checks.rewards(submission, inf if whole else self._seconds_left(upload))
            if finding and finding.check in (SCORER, MARGIN) and not whole:
                whole = True
                finding = self._computed(submission) or self.checks.rewards(submission)
            if not is_blame(finding):  # what is nearly right hides nothing that is wrong
                finding = near or finding
        except (WeightsError, ModelError) as error:
            if self.channel.version(submission.version) == Version(submission.version, submission.weights):
                return self._postpone(upload, UnreadError(str(error), again=True), began)
            rule = "a file is made with a version that is published"
            finding, whole = Finding("version", rule, submission.version, str(error)), False
        if finding:
            return self._reject(upload, sha256, submission, finding, whole, began)
        self._accept(upload, sha256, submission, whole, began)
        return True

    def _judge_by_weight(
        self, upload: Upload, sha256: str, submission: Submission, first: Sequence[int], whole: bool, began: float
    ) -> bool:
        """A verdict where numbers are rounded: by the evidence in nats, of this file and of its node's life.

        A file that looks odd in the answers that were drawn is weighed whole: nobody is judged by the odd ones alone.
        """
        weighed = self._weigh(submission, sha256, first) if first else None
        if weighed is not None and weighed.total >= VOID_NATS:
            whole = True
        if whole:
            weighed = self._weigh(submission, sha256)
        account = self._count(upload, weighed) if weighed is not None else None
        found = finding_of(weighed, account) if weighed is not None else None
        if found is not None and not self.run_dir.config.audit.enforce:
            self.metrics.write("note", text=f"not enforced: {upload.node}, {found}")
            found = None
        if account is not None and account.nats() >= BAN_NATS and found is not None:
            self._ban(upload.node, "rounding", str(found))
        if is_blame(found):
            return self._reject(upload, sha256, submission, cast("Finding", found), True, began)
        scored = self.checks.rewards(submission, inf if whole else self._seconds_left(upload))
        if scored is not None and scored.check in (SCORER, MARGIN) and not whole:
            scored = self.checks.rewards(submission)
        found = scored if is_blame(scored) else found or scored
        if found is not None:
            return self._reject(upload, sha256, submission, found, whole, began)
        self._accept(upload, sha256, submission, whole, began)
        return True

    def _weigh(self, submission: Submission, sha256: str, some: Sequence[int] = ()) -> Weighed:
        """Numeric evidence against a file, or some of its answers."""
        version = Version(submission.version, submission.weights)
        self._load(version)
        older = next((kept for known, kept in self.kept.items() if known.number == version.number - 1), None)
        return self.checks.weigh(
            _part(submission, some), self.audits.alternatives(submission.lease.node, sha256), older
        )

    def _count(self, upload: Upload, weighed: Weighed) -> Account:
        """Adds a file's evidence to what there is against its node."""
        account = self.evidence.add(upload.node, upload.step, upload.submission, weighed)
        self.metrics.write(
            "weighed",
            step=upload.step,
            submission=upload.submission,
            node=upload.node,
            nats=weighed.total,
            strongest=weighed.strongest,
            tokens=weighed.tokens,
            node_nats=account.nats(),
            node_files=account.files,
        )
        return account

    def _seconds_left(self, upload: Upload) -> float:
        return max(0.0, self.budget.left(upload.node, upload.record))

    def _computed(self, submission: Submission, some: Sequence[int] = ()) -> Finding | None:
        """What computing a file again finds, or some of its answers, taken for a file of their own.

        A finding about one of these answers stands; one about all of them (`sample` is None) does not decide the file.
        """
        self._load(Version(submission.version, submission.weights))
        (finding,) = self.checks.costly([_part(submission, some)])
        if finding is None or finding.sample is None or not some:
            return finding
        return replace(finding, sample=some[finding.sample])

    def _of_group(self, submission: Submission, number: int) -> Finding | None:
        """What an answer's whole group shows, which is what the evidence holds and a replay comes to again."""
        accused = submission.rollouts[number].group
        finding = self._computed(submission, [n for n, r in enumerate(submission.rollouts) if r.group == accused])
        return finding if finding and finding.sample is not None else None

    def _postpone(self, upload: Upload, error: UnreadError, began: float) -> bool:
        """Leaves a file that could not be fetched or read for later, and after some tries without verdict on its maker:
        no strike, no accusation, no evidence; it is not paid either, so nobody gains by files that nobody can read."""
        place = (upload.step, upload.submission)
        tries = self.postponed[place].tries + 1 if place in self.postponed else 1
        if error.again and tries < MAX_TRIES:
            pause = FIRST_PAUSE_S * 2 ** (tries - 1)
            self.postponed[place] = Put(tries, time.monotonic() + pause)
            self.metrics.write("note", text=f"not judged, tried again in {pause:.0f} s: {str(error)[:MAX_REASON]}")
            return True
        self.postponed.pop(place, None)
        finding = Finding(UNREAD, "a file can be fetched and read", upload.path.name, str(error)[:MAX_REASON])
        self._note(upload, Vote("v", ""))
        verdict = Verdict(False, "", False, finding)
        self.store.judge(upload, verdict)
        self._say(upload, None, False, verdict, False, began)
        return False

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
        tokens = _tokens_of(submission)
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
    ) -> bool:
        evidence = self._keep_evidence(upload, submission, finding, audited)
        # A reject costs a multiple of what the file would have brought, and one that is put right is paid.
        tokens = _tokens_of(submission) if submission is not None else 0
        verdict = Verdict(False, sha256, audited, finding, evidence, tokens=tokens)
        blamed = self._is_fault(submission, finding)
        # On the ledger nobody is accused of what the file's bytes do not show, such as which versions were published.
        proof = sha256_file(self.run_dir.path / evidence) if blamed and evidence and is_blame(finding) else ""
        self._note(upload, Vote("r", sha256, tokens, proof) if proof else Vote("v", sha256, tokens))
        self.store.judge(upload, verdict)
        self._say(upload, submission, audited, verdict, blamed, began)
        if blamed:
            if audited and not self.strikes[upload.node]:  # one alarm per node: afterwards none of its files is sampled
                self.audits.alarm(upload.node, upload.step)
            self.strikes[upload.node] += 1
            # Also beyond that number: a validator that was killed between the last strike and the ban makes up for it.
            if (count := self.strikes[upload.node]) >= self.run_dir.config.audit.strikes:
                last = f"{count} files rejected, the last because of {finding}; evidence: {evidence}"
                self._ban(upload.node, finding.check, last)
        return False

    def _ban(self, node: str, check: str, reason: str) -> None:
        """Tells the coordinator that a node gets no more leases, once."""
        if node not in self.put_out:
            self.put_out.add(node)
            self.store.ban(node, reason)
            self.metrics.write("banned", node=node, check=check, reason=reason)

    def _note(self, upload: Upload, vote: Vote) -> None:
        if self.votes is not None:
            self.votes.note(upload.step, upload.submission, vote)

    def _is_fault(self, submission: Submission | None, finding: Finding) -> bool:
        """Whether the file's maker is to blame.

        It is not where our own scorer fails, nor where the version that the file was made with was lost here or taken
        back by a trainer that was killed. It is for a version that never was.
        """
        if finding.check != "version" or submission is None:
            return is_blame(finding)
        claimed = Version(submission.version, submission.weights)
        if self.channel.was_retracted(claimed):
            return False
        newest, there = self.channel.latest(), self.channel.version(claimed.number)
        if there is None:
            return newest is not None and claimed.number > newest.number
        return there != claimed

    def _keep_evidence(self, upload: Upload, submission: Submission | None, finding: Finding, audited: bool) -> str:
        folder, config = self.run_dir.path / "evidence", self.run_dir.config
        target = folder / bundle_name(upload.step, upload.submission)
        # The first few say enough of a node that is banned after half as many.
        whole = self.strikes[upload.node] < 2 * config.audit.strikes and has_room(folder)
        try:
            table = self._table_of(submission)
            rates = self.checks.rates if finding.check in ("numbers", ROUNDING) else None
            bundle = bundle_of(config, upload.path, upload.lease, submission, finding, table, whole=whole, rates=rates)
            write_bundle(bundle, target)
            if audited and submission is not None:
                keep_version(folder, self.channel.fetch(self.loaded), self.loaded)
            oldest = upload.step - max(config.keep.evidence, config.ledger.challenge_steps)
            prune_evidence(folder, oldest, oldest - config.async_level)
        except (OSError, WeightsError) as error:  # lost evidence does not turn a reject into an accept
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


def _part(submission: Submission, some: Sequence[int]) -> Submission:
    """Some answers of a file, as a file of their own; all of them if none is named."""
    return replace(submission, rollouts=[submission.rollouts[n] for n in some]) if some else submission


def _tokens_of(submission: Submission) -> int:
    return sum(len(rollout.completion) for rollout in submission.rollouts)


def past_strikes(path: Path) -> Counter[str]:
    """Rejections that an earlier life of this validator has given, from its metrics."""
    from shoal.telemetry.metrics import read_metrics

    strikes: Counter[str] = Counter()
    for entry in read_metrics(path):
        if entry["event"] == "verdict" and entry.get("blamed"):
            strikes[entry["node"]] += 1
    return strikes


def _noter(metrics: MetricsWriter) -> Callable[[str], None]:
    return lambda text: metrics.write("note", text=text)


def start_validator(run: RunDir, options: JoinOptions) -> None:
    """Runs the validator of a run in this process until the run is done."""
    config = run.config
    torch.set_num_threads(config.audit.threads)
    taken = f"validator: another one is at work in {run.path}; a run has one validator"
    with (
        locked(run.path / "locks" / "validator", taken, wait_s=TAKEOVER_S),
        run.role("validator") as (status, metrics),
        options.session(run, "validator", "validator", status, metrics) as session,
    ):
        channel = session.weights
        status.working("loading the base model")
        base = run.base_version(channel)
        policy = load_as(channel.fetch(base), config.model.dtype, "float32")
        store = session.open_store(limits_of(config, policy.vocab), ignore_refused)

        with Scorer(config.tasks) as judge, ExitStack() as lines:
            checks = Checks(config, policy, judge.tasks, judge, roots_of(channel), store.table)
            audits = Audits(config.audit)
            strikes = past_strikes(run.path / "metrics" / "validator.jsonl")
            validator = Validator(run, channel, store, checks, audits, status, metrics, base, strikes)
            validator.votes = Votes(run.path / "nodes" / "votes.jsonl")
            # A connection of its own: votes are sent while files are judged.
            own = lines.enter_context(CoordinatorClient(session.link.join_at, session.link.key, config.wait_s))
            if config.model.dtype == "bfloat16":
                validator.rates = RatesFollower(
                    session.link.rates, read_architecture(channel.fetch(base)), _noter(metrics)
                )
                checks.judge_by(validator.rates.table)
            validator.juror = Juror(own, validator.votes, run.path / "nodes" / "head.json")
            validator.run()
