"""Judges one file: formal rules, then the answers that are drawn, the whole file where they look odd, and rewards.

The order keeps strangers from choosing what costs time. Nothing in a file can make formal rules take long. Whether
answers were drawn as the lease asks comes before what they earn: answers that were made up can take long to score.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from shoal.protocol.stores import PROVEN, Upload
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import MARGIN, Finding, is_blame
from shoal.protocol.work import NO_WORK, Work
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.judging.recomputed import ByEvidence, ByThresholds, Recomputed
from shoal.validate.judging.version_cache import VersionCache
from shoal.validate.numerics.account import Account
from shoal.validate.numerics.judge import Weighed

SCORER = "scorer"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found of a file; no finding accepts it."""

    finding: Finding | None
    audited: bool
    """Whether the whole file was computed again, or the group that decided it."""
    weighed: Weighed | None = None
    """Numeric evidence, in bfloat16 runs, of the answers that were computed; it counts against the node once."""
    computed: Work = NO_WORK
    """What was computed to find it."""


@dataclass(slots=True)
class FileJudge:
    """Decides with what it is given, and remembers of a node only which files were drawn."""

    checks: Checks
    audits: Audits
    versions: VersionCache
    account_with: Callable[[Upload, Weighed], Account] | None
    """What there would be against an upload's node with this evidence; None where thresholds decide."""

    def judge(self, upload: Upload, submission: Submission, sha256: str, *, suspect: bool, seconds: float) -> Judgement:
        """A judgement on an upload. `seconds` bound the scoring of answers that may have been made up.

        A WeightsError or ModelError says that the version that the file names could not be loaded.
        """
        if finding := self.checks.formal(submission):
            return Judgement(finding, audited=False)
        file = self._recomputed(upload, submission, sha256)
        return replace(self._judge(upload, submission, sha256, file, suspect, seconds), computed=file.computed)

    def _judge(
        self, upload: Upload, submission: Submission, sha256: str, file: Recomputed, suspect: bool, seconds: float
    ) -> Judgement:
        whole = suspect or self.audits.drawn(upload.node, sha256, upload.step)
        if drawn := self._answers_first(upload, submission, sha256, whole):
            look = file.some(drawn)
            if look.blame:
                return Judgement(look.blame, audited=True, weighed=file.weighed)
            whole = whole or look.odd
        found = file.whole() if whole else None
        if is_blame(found):
            return Judgement(found, audited=True, weighed=file.weighed)
        scored = self.checks.rewards(submission, inf if whole else seconds)
        if not whole and scored and scored.check in (SCORER, MARGIN):
            # Before answers are scored without a bound, it is known that they were drawn.
            whole, found = True, file.whole()
            scored = found or self.checks.rewards(submission)
        # What is nearly right hides nothing that is wrong.
        finding = scored if is_blame(scored) else found or scored
        return Judgement(finding, audited=whole, weighed=file.weighed)

    def _answers_first(self, upload: Upload, submission: Submission, sha256: str, whole: bool) -> list[int]:
        """Answers to compute before the others: a spot check, or a newcomer's, whose file may be made up throughout.

        Evidence never decides by some answers, so of a file that is weighed whole none comes first.
        """
        if not whole:
            return self.audits.spot(sha256, [len(rollout.completion) for rollout in submission.rollouts])
        if upload.record >= PROVEN or self.account_with is not None:
            return []
        return self.audits.first_look(sha256, len(submission.rollouts))

    def _recomputed(self, upload: Upload, submission: Submission, sha256: str) -> Recomputed:
        if self.account_with is None:
            return ByThresholds(self.checks, self.versions, submission)
        account_with = self.account_with
        won = account_with(upload, Weighed({}, 0)).won
        alternatives = self.audits.alternatives(upload.node, sha256, won)
        return ByEvidence(
            self.checks,
            self.versions,
            submission,
            alternatives,
            lambda weighed: account_with(upload, weighed),
            enforce=self.checks.config.audit.enforce,
        )
