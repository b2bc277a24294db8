"""What a forward pass over rollouts has to compute, in counts that any model's FLOPs follow from.

The same counts hold for generating answers and for computing them again: a group's prompt goes through the model once,
and of each answer every token but the last.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from shoal.protocol.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens that go through all blocks, tokens whose logits are computed, and pairs of tokens in attention."""

    fed: int = 0
    drawn: int = 0
    pairs: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.fed + other.fed, self.drawn + other.drawn, self.pairs + other.pairs)

    def to_json(self) -> dict[str, int]:
        return asdict(self)


NO_WORK = Work()


def work_of(rollouts: Iterable[Rollout]) -> Work:
    """Of answers; those of one group that stand side by side share their prompt."""
    total = NO_WORK
    for _, samples in groupby(rollouts, key=lambda rollout: (rollout.group, len(rollout.prompt))):
        own = list(samples)
        whole = group_work(len(own[0].prompt), [len(sample.completion) for sample in own])
        total += replace(whole, drawn=sum(sample.drawn_count for sample in own))
    return total


def group_work(prompt: int, answers: Iterable[int]) -> Work:
    """Of one prompt with answers of these lengths."""
    fed, drawn, pairs = prompt, 0, prompt * (prompt + 1) // 2
    for length in answers:
        after = max(0, length - 1)
        fed += after
        drawn += length
        pairs += after * prompt + after * (after + 1) // 2
    return Work(fed, drawn, pairs)
