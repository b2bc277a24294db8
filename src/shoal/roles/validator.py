"""The validator: judges every upload before the trainer may read it, and leaves evidence of what it rejects.

Where several validators of one owner share a run's files, the coordinator says whose turn each file is, and every one
goes by what all of them found (`client/peer_notes.py`): strikes and evidence against a node add up over its files.

Files are judged one by one, those of nodes with accepted files first (`validate/queue.py`). `validate/judging` decides,
`client/verdict_writer.py` tells; in between, numeric evidence is counted against the node, and blame is a strike. A
node with too many strikes or too much evidence gets no more leases.

Only what a file's bytes show is blame. A file that cannot be fetched or read here is tried again, and then void.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf

from shoal.client.honest_rates import RatesFollower
from shoal.client.peer_notes import PeerNotes
from shoal.client.verdict_writer import Judged, VerdictWriter
from shoal.client.voting import Juror
from shoal.errors import ModelError, RolloutError, UnreadError, WeightsError
from shoal.protocol.judge_note import JudgeNote
from shoal.protocol.numeric_evidence import NumericEvidence, standing
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.stores import PROVEN, RolloutStore, Upload, Version, WeightSource, newest_of
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import NUMBERS, UNFETCHED, Finding
from shoal.rundir import RunDir
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile
from shoal.telemetry.waiting import Patience
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.vote_log import Votes
from shoal.validate.judging.file_judge import FileJudge, Judgement
from shoal.validate.judging.version_cache import VersionCache
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.evidence_log import EvidenceLog
from shoal.validate.numerics.judge import Weighed, finding_of
from shoal.validate.numerics.shared_evidence import SharedEvidence, Shown
from shoal.validate.queue import NewcomerTime, TimeBudget, in_turn, one_newcomer_first

POLL_S = 0.02
# How long files are judged before it is asked whether better ones have come.
RELIST_S = 0.5
UNREAD = "unread"
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
    """Judges uploads, each of them once; files of nodes that have shown the most come first."""

    run_dir: RunDir
    channel: WeightSource
    store: RolloutStore
    checks: Checks
    audits: Audits
    status: StatusFile
    metrics: MetricsWriter
    loaded: Version
    """What the policy of `checks` has at the start."""
    strikes: Counter[str] = field(default_factory=Counter)
    by_numbers: Counter[str] = field(default_factory=Counter)
    """Those of the strikes that the newest honest rates gave: they last as long as these do."""
    votes: Votes | None = None
    rates: RatesFollower | None = None
    """Brings newer honest rates, where numbers are judged by them."""
    juror: Juror | None = None
    """Speaks for this validator on the ledger, where there is one."""
    peers: PeerNotes | None = None
    """What is found by all validators that share the files, this one included; None where there is no other."""
    early: dict[tuple[int, int], int] = field(default_factory=dict)
    """Files made with a version that is out and has not come here, and its number."""
    postponed: dict[tuple[int, int], Put] = field(default_factory=dict)
    budget: TimeBudget = field(default_factory=TimeBudget)
    newcomers: NewcomerTime = field(default_factory=NewcomerTime)
    evidence: EvidenceLog | SharedEvidence | None = field(init=False)
    """Numeric evidence against each node, over its life; bfloat16 runs alone have it."""
    files: FileJudge = field(init=False)
    verdicts: VerdictWriter = field(init=False)
    _heard: bool = field(default=False, init=False)
    _hand: int = field(default=1, init=False)
    """Files that are judged before it is asked for more: those that are here no other validator is given."""

    def __post_init__(self) -> None:
        config = self.run_dir.config
        weighs = self.checks.numbers is not None  # then files are also compared with the version before theirs
        size = config.async_level + (2 if weighs else 1)
        versions = VersionCache(self.channel, self.checks.policy, self.loaded, config.model.dtype, size)
        self.evidence = None
        if weighs:
            own = self.run_dir.path / "nodes" / "evidence.jsonl"
            self.evidence = EvidenceLog(own) if self.peers is None else SharedEvidence()
        self.files = FileJudge(self.checks, self.audits, versions, self._account_with if weighs else None)
        self.verdicts = VerdictWriter(
            self.run_dir, self.channel, self.store, self.checks, self.status, self.metrics, self.votes
        )
        self.verdicts.shares = self.peers is not None

    def run(self) -> None:
        """Judges until the last version is out."""
        config = self.run_dir.config
        patience = Patience(self.metrics, config.patience_s)
        while True:
            newest = newest_of(self.channel)
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
            self._hear()

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
        # Those in hand that wait for something else leave room for others.
        hand = self._hand + sum(step >= newest for step, _ in {*self.early, *self.postponed})
        uploads = self.store.waiting(newest, newest + self.run_dir.config.async_level, hand)
        if owed := self.juror.owed if self.juror else frozenset():
            listed, steps = {(upload.step, upload.submission) for upload in uploads}, [step for step, _ in owed]
            drawn = self.store.waiting(min(steps), max(steps))
            places = owed - listed
            uploads += [upload for upload in drawn if (upload.step, upload.submission) in places]
        return uploads

    def _is_early(self, upload: Upload, newest: Version) -> bool:
        return self.early.get((upload.step, upload.submission), newest.number) > newest.number

    def judge_by(self, rates: RatesTable) -> None:
        """Judges numbers by another version of the run's honest rates from now on, and forgets what earlier ones said
        of nodes, as the coordinator has: evidence, strikes, and the bans that rest on them."""
        is_looser = rates.version > self.checks.rates.version
        self.checks.judge_by(rates)
        if self.evidence is not None:
            self.evidence.loosened(rates.version)
        if is_looser:
            self.strikes -= self.by_numbers
            self.by_numbers.clear()
            self.verdicts.banned.clear()
            most = self.run_dir.config.audit.strikes
            for node, count in self.strikes.items():
                if count >= most:
                    self.verdicts.ban(node, "strikes", f"{count} files rejected, none of them because of numbers")
        self.metrics.write("note", text=f"numbers are judged by version {rates.version} of the honest rates")

    def _has_not_come(self, submission: Submission) -> bool:
        """Whether a file's version is out, and its maker only was faster to have it: the relays may be away."""
        newest, last = self.channel.latest(), submission.spans[-1]
        if newest is None or last.version <= newest.number or self.channel.version(last.version) is not None:
            return False
        retracted = self.channel.was_retracted(Version(last.version, last.weights))
        return not retracted and self.store.is_out(last.version)

    def judge(self, uploads: Sequence[Upload], seconds: float = inf) -> None:
        """Judges uploads in turn, until all have had theirs or the time is up: then better ones may have come."""
        began_all = time.monotonic()
        until = began_all + seconds
        if self.rates and (newer := self.rates.newer()):
            self.judge_by(newer)
        if isinstance(self.evidence, SharedEvidence):
            for upload in uploads:
                self.evidence.listed(upload.step, upload.submission, upload.ordinal)
        self._hear()
        order = in_turn(uploads, self._rank, self.files.versions.loaded.number)
        proven_waiting = sum(self._rank(upload) >= PROVEN for upload in order)
        if self.newcomers.is_due:
            order = one_newcomer_first(order, self._rank)
        for number, upload in enumerate(order, 1):
            self.status.working(f"judging submission {upload.submission} of step {upload.step}")
            began, is_proven = time.monotonic(), self._rank(upload) >= PROVEN
            is_accepted = self._judge(upload)
            took = time.monotonic() - began
            if not is_accepted:
                self.budget.spend(upload.node, took)
            if is_proven:
                proven_waiting -= 1
                self.newcomers.proven_took(took)
            elif proven_waiting:
                self.newcomers.newcomer_took(took)
            self._hand = math.ceil(RELIST_S * number / (time.monotonic() - began_all + 1e-3))
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
            return self._reject(Judged(upload, None, "", broken, audited=False, began=began))
        if self._has_not_come(submission):
            self.early[upload.step, upload.submission] = submission.spans[-1].version
            return True
        self.early.pop((upload.step, upload.submission), None)
        suspect, seconds = self._is_suspect(upload.node), max(0.0, self.budget.left(upload.node, upload.record))
        try:
            found = self.files.judge(upload, submission, sha256, suspect=suspect, seconds=seconds)
        except (WeightsError, ModelError) as error:
            gone = [s for s in submission.spans if self.channel.version(s.version) != Version(s.version, s.weights)]
            if not gone:
                return self._postpone(upload, UnreadError(str(error), again=True), began)
            rule = f"version {gone[0].version}, which it was made with, is published"
            found = Judgement(Finding("version", rule, gone[0].weights[:64], str(error)), audited=False)
        numbers = self._count(upload, found.weighed) if found.weighed is not None else None
        judged = Judged(
            upload, submission, sha256, found.finding, found.audited, began, numbers, found.weighed, found.computed
        )
        if found.finding is not None:
            return self._reject(judged)
        self.verdicts.accept(judged)
        return True

    def _is_suspect(self, node: str) -> bool:
        """Whether all files of a node are computed whole: it had a strike, or too much evidence against it."""
        return self.strikes[node] > 0 or (
            self.evidence is not None and self.run_dir.config.audit.enforce and self.evidence.of(node).is_over
        )

    def _account_with(self, upload: Upload, weighed: Weighed) -> Account:
        assert self.evidence is not None
        return self.evidence.with_file(upload.node, upload.step, upload.submission, weighed)

    def _count(self, upload: Upload, weighed: Weighed) -> NumericEvidence:
        """Adds a file's evidence to what there is against its node, and bans the node if that is too much.

        Before the verdict: a validator that is killed in between judges the file again, counts it no second time, and
        makes up for the ban.
        """
        assert self.evidence is not None
        account = self.evidence.add(upload.node, upload.step, upload.submission, weighed)
        numbers = NumericEvidence(
            weighed.total,
            weighed.tokens,
            weighed.strongest,
            account.held_against,
            account.files,
            BAN_NATS,
            self.checks.rates.version,
        )
        place = {"step": upload.step, "submission": upload.submission, "node": upload.node}
        self.metrics.write("weighed", **place, **asdict(numbers))
        found = finding_of(weighed, account)
        if found is not None and not self.run_dir.config.audit.enforce:
            self.metrics.write("note", text=f"not enforced: {upload.node}, {found}")
        elif found is not None and account.is_over and self.peers is None:
            self.verdicts.ban(upload.node, found.check, str(found), self.checks.rates.version)
        return numbers

    def _reject(self, judged: Judged) -> bool:
        """Gives the verdict, and counts a strike if the file's maker is to blame; False, for it was not accepted."""
        assert judged.finding is not None
        node, most = judged.upload.node, self.run_dir.config.audit.strikes
        # The first few say enough of a node that is banned after half as many.
        blamed, evidence = self.verdicts.reject(judged, whole=self.strikes[node] < 2 * most)
        if not blamed:
            return False
        if judged.audited and not self.strikes[node]:  # one alarm per node: afterwards none of its files is sampled
            self.audits.alarm(node, judged.upload.step)
        if self.peers is None:
            self.strikes[node] += 1
            self.by_numbers[node] += judged.finding.check == NUMBERS
        else:
            self._hear()
        # Also beyond that number: a validator that was killed between the last strike and the ban makes up for it.
        if (count := self.strikes[node]) >= most:
            reason = f"{count} files rejected, the last because of {judged.finding}; evidence: {evidence}"
            rests_on_numbers = count - self.by_numbers[node] < most
            rates = self.checks.rates.version if rests_on_numbers else None
            self.verdicts.ban(node, judged.finding.check, reason, rates)
        return False

    def _hear(self) -> None:
        """Takes up what all validators that share the files have found, this one included, in the order of verdicts.

        Who gave the verdict that is too much bans the node; after a start, that is made up for. Files that others
        judged count for a node's probation from then on, as this validator's own do.
        """
        if self.peers is None:
            return
        first, self._heard = not self._heard, True
        me = self.peers.me
        for filed in self.peers.fresh():
            note, node = filed.note, filed.node
            if not first and filed.judge != me:
                self.audits.saw(node)
                if note.blamed and note.audited and not self.strikes[node]:
                    self.audits.alarm(node, filed.step)
            if note.blamed:
                self._strike_again(node, note)
            if isinstance(self.evidence, SharedEvidence):
                weighed = note.weighed
                nats = None if weighed is None else weighed.nats
                shown = Shown(filed.step, nats, weighed.tokens if weighed else 0, weighed.rates if weighed else 0)
                self.evidence.take(node, filed.ordinal, shown)
                if first or filed.judge == me:
                    self._ban_for_evidence(node, self.evidence.of(node))
        newest = self.channel.latest()
        if isinstance(self.evidence, SharedEvidence) and newest is not None:
            self.evidence.give_up(newest.number, self.run_dir.config.async_level)

    def _strike_again(self, node: str, note: JudgeNote) -> None:
        """Counts a strike that one of the validators gave, unless honest rates gave it that were loosened since."""
        by_numbers = note.check == NUMBERS
        if by_numbers and note.weighed is not None and note.weighed.rates < self.checks.rates.version:
            return
        self.strikes[node] += 1
        self.by_numbers[node] += by_numbers

    def _ban_for_evidence(self, node: str, account: Account) -> None:
        if account.is_over and self.run_dir.config.audit.enforce:
            against = standing(account.held_against, account.files, BAN_NATS)
            said = f"{against}, over files that several validators judged"
            self.verdicts.ban(node, NUMBERS, said, self.checks.rates.version)

    def _postpone(self, upload: Upload, error: UnreadError, began: float) -> bool:
        """Leaves a file that could not be fetched or read for later, and after some tries without verdict on its
        maker: nobody is blamed, and nobody gains by files that nobody can read."""
        place = (upload.step, upload.submission)
        tries = self.postponed[place].tries + 1 if place in self.postponed else 1
        if error.again and tries < MAX_TRIES:
            pause = FIRST_PAUSE_S * 2 ** (tries - 1)
            self.postponed[place] = Put(tries, time.monotonic() + pause)
            self.metrics.write("note", text=f"not judged, tried again in {pause:.0f} s: {str(error)[:MAX_REASON]}")
            return True
        self.postponed.pop(place, None)
        # What did not come here is not its maker's doing; what a reader stumbles over may be, and its draw is owed.
        check = UNFETCHED if error.again else UNREAD
        finding = Finding(check, "a file can be fetched and read", upload.path.name, str(error)[:MAX_REASON])
        self.verdicts.void(Judged(upload, None, "", finding, audited=False, began=began))
        return error.again  # nor is a node charged for time in which nothing came
