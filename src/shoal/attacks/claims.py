"""False claims about honest answers, and files that were made for another lease."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.attacks.base import attack
from shoal.exchange.interfaces import Version
from shoal.rollout.lease import Lease
from shoal.rollout.maker import Maker
from shoal.rollout.record import Submission
from shoal.tasks.source import Score, Task


@attack
class FalseReward(Maker):
    """Every other answer is said to be right."""

    def score(self, answers: Sequence[tuple[Task, str]]) -> list[Score]:
        honest = Maker.score(self, answers)
        return [Score(1.0 if n % 2 == 0 else 0.0) if s.reward is not None else s for n, s in enumerate(honest)]


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
        return replace(honest, rollouts=[replace(r, logprobs=[p - 0.5 for p in r.logprobs]) for r in honest.rollouts])


@attack
class AnothersFile(Maker):
    """What another worker made under its own lease, under one's own name."""

    def make(self, lease: Lease, version: Version) -> Submission:
        another = replace(lease, node=f"not-{lease.node}")
        return replace(Maker.make(self, another, version), lease=lease)


@attack
class SentTwice(Maker):
    """One's own file of an earlier lease again."""

    def make(self, lease: Lease, version: Version) -> Submission:
        earlier = replace(lease, submission=lease.submission + 1)
        return replace(Maker.make(self, earlier, version), lease=lease)
