"""Recomputed files, one class per number format: thresholds decide in float32, evidence in nats in bfloat16.

Both are asked the same two questions. Some answers may raise suspicion, and then the whole file decides: an answer that
looks odd by itself is not the file's verdict, and evidence that was picked because it looks odd is not evidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding, is_blame
from shoal.protocol.work import NO_WORK, Work, work_of
from shoal.validate.checks.all_checks import Checks
from shoal.validate.judging.version_cache import VersionCache
from shoal.validate.numerics.account import Account
from shoal.validate.numerics.alternatives import OLDER, Weights
from shoal.validate.numerics.judge import VOID_NATS, Weighed, finding_of


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What some answers of a file show."""

    odd: bool
    """Whether the whole file is to be computed."""
    blame: Finding | None = None
    """A finding that decides the file already."""


class Recomputed(Protocol):
    """One file, computed again with the weights that it names."""

    @property
    def weighed(self) -> Weighed | None:
        """Evidence against the answers that were computed last; None where thresholds decide, or nothing was."""
        ...

    @property
    def computed(self) -> Work:
        """All that was computed so far."""
        ...

    def some(self, answers: Sequence[int]) -> FirstLook: ...

    def whole(self) -> Finding | None: ...


@dataclass(slots=True)
class ByThresholds:
    """Float32: every token, log-prob and proof is within its threshold, or the file is not honest."""

    checks: Checks
    versions: VersionCache
    submission: Submission
    weighed: Weighed | None = None
    computed: Work = NO_WORK

    def some(self, answers: Sequence[int]) -> FirstLook:
        """A finding about one answer stands if its group shows it too, which is what evidence holds and a replay
        computes. One about all of them together does not decide the file."""
        found = self._computed(answers)
        if found is None or found.sample is None:
            return FirstLook(odd=found is not None)
        rollouts = self.submission.rollouts
        accused = rollouts[found.sample].group
        found = self._computed([n for n, rollout in enumerate(rollouts) if rollout.group == accused])
        stands = found is not None and found.sample is not None and is_blame(found)
        return FirstLook(odd=True, blame=found if stands else None)

    def whole(self) -> Finding | None:
        return self._computed()

    def _computed(self, some: Sequence[int] = ()) -> Finding | None:
        """What the file shows, or some of its answers, taken for a file of their own."""
        self.versions.load(version_of(self.submission))
        part = part_of(self.submission, some)
        self.computed += work_of(part.rollouts)
        (finding,) = self.checks.costly([part], self.versions.load)
        if finding is None or finding.sample is None or not some:
            return finding
        return replace(finding, sample=some[finding.sample])


@dataclass(slots=True)
class ByEvidence:
    """bfloat16: honest machines round differently, so the file's numbers are weighed against how honest ones do."""

    checks: Checks
    versions: VersionCache
    submission: Submission
    alternatives: Sequence[str]
    """Other computations that the file is compared with."""
    account_with: Callable[[Weighed], Account]
    """What there would be against the node with this file counted once."""
    enforce: bool
    weighed: Weighed | None = field(default=None, init=False)
    computed: Work = field(default=NO_WORK, init=False)

    def some(self, answers: Sequence[int]) -> FirstLook:
        """Nobody is dropped or banned for some answers: where they would decide, the whole file is weighed instead."""
        weighed = self._weigh(answers)
        over = self.enforce and self.account_with(weighed).is_over
        return FirstLook(odd=over or weighed.total >= VOID_NATS)

    def whole(self) -> Finding | None:
        weighed = self._weigh()
        return finding_of(weighed, self.account_with(weighed)) if self.enforce else None

    def _weigh(self, some: Sequence[int] = ()) -> Weighed:
        part = part_of(self.submission, some)
        for _ in (self.submission, *self.alternatives):
            self.computed += work_of(part.rollouts)
        self.weighed = self.checks.weigh(part, self.alternatives, self._older, self.versions.load, self._own)
        return self.weighed

    def _older(self, version: Version) -> Weights | None:
        return self.versions.before(version) if OLDER in self.alternatives else None

    def _own(self) -> Weights | None:
        return self.versions.own() if self.alternatives else None


def version_of(submission: Submission) -> Version:
    return Version(submission.version, submission.weights)


def part_of(submission: Submission, some: Sequence[int]) -> Submission:
    """Some answers of a file, as a file of their own; all of them if none is named."""
    return replace(submission, rollouts=[submission.rollouts[n] for n in some]) if some else submission
