"""False claims about honest answers, and files that were made for another lease."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.attacks.base import attack
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.tasks.source import Score, Task


@attack
class FalseReward(Maker):
    """Every other answer is said to be right if it is wrong, and wrong if it is right."""

    def score(self, answers: Sequence[tuple[Task, str]]) -> list[Score]:
        honest = Maker.score(self, answers)
        return [
            Score(float(s.reward < 0.5)) if n % 2 == 0 and s.reward is not None else s for n, s in enumerate(honest)
        ]


@attack
class NudgedReward(Maker):
    """Rewards a hair apart: in a group that has nothing to teach, advantages divide by that hair."""

    def score(self, answers: Sequence[tuple[Task, str]]) -> list[Score]:
        honest = Maker.score(self, answers)
        return [Score(s.reward + 5e-6) if n % 2 == 0 and s.reward is not None else s for n, s in enumerate(honest)]


@attack
class FalseAdvantage(Maker):
    """Right rewards, advantages upside down."""

    def advantages(self, rewards: Sequence[float | None]) -> list[float]:
        return [0.5 - advantage for advantage in Maker.advantages(self, rewards)]


@attack
class FalseLogprobs(Maker):
    """Log-probs half a nat too low: the loss would take old tokens for unlikely ones."""

    def make(self, lease: Lease, version: Version) -> Submission:
        honest = Maker.make(self, lease, version)
        return replace(honest, rollouts=[replace(r, logprobs=r.logprobs - 0.5) for r in honest.rollouts])


@attack
class AnothersFile(Maker):
    """What another worker made under its own lease, byte for byte."""

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        return Maker.file(self, another(lease), version)


@attack
class AnothersAnswers(Maker):
    """What another worker made under its own lease, with one's own lease written over it."""

    def make(self, lease: Lease, version: Version) -> Submission:
        return replace(Maker.make(self, another(lease), version), lease=lease)


@attack
class SentTwice(Maker):
    """One's own file of the step before, byte for byte."""

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        return Maker.file(self, earlier(lease), version)


@attack
class AnsweredTwice(Maker):
    """One's own answers of the step before, with the new lease written over them."""

    def make(self, lease: Lease, version: Version) -> Submission:
        return replace(Maker.make(self, earlier(lease), version), lease=lease)


def another(lease: Lease) -> Lease:
    return replace(lease, node=f"not-{lease.node}", submission=lease.submission + 1, draw_of="")


def earlier(lease: Lease) -> Lease:
    return replace(lease, step=lease.step - 1, draw_of="")
