"""Other weights than the claimed version's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.attacks.base import attack, changed, fewer_layers
from shoal.exchange.interfaces import Version
from shoal.rollout.engine import Completion, Request
from shoal.rollout.lease import Lease
from shoal.rollout.maker import Maker
from shoal.rollout.record import Submission

# A neighbour's weights differ by this share of a matrix's spread, as after a short fine-tuning.
NEIGHBOUR = 0.01


def quantised(levels: int, weights_RC: Tensor) -> Tensor:
    """Rounded to whole steps, each row by its own scale."""
    step_R1 = weights_RC.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / levels
    return (weights_RC / step_R1).round() * step_R1


@attack
class Int8(Maker):
    """Weights in 8 bits: half the memory of bf16."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with changed(self.policy, lambda _, w: quantised(127, w)):
            return Maker.answer(self, requests)


@attack
class Int4(Maker):
    """Weights in 4 bits: a quarter of the memory."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with changed(self.policy, lambda _, w: quantised(7, w)):
            return Maker.answer(self, requests)


@attack
class SmallerModel(Maker):
    """A third of the layers left out."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with fewer_layers(self.policy):
            return Maker.answer(self, requests)


@attack
class Neighbour(Maker):
    """A model fine-tuned from the right one."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        generator = torch.Generator().manual_seed(0)

        def nudge(_: str, weights: Tensor) -> Tensor:
            return weights + NEIGHBOUR * weights.std() * torch.randn(weights.shape, generator=generator)

        with changed(self.policy, nudge):
            return Maker.answer(self, requests)


class _Past:
    """Weights of the version before the one that was last asked for."""

    def __init__(self) -> None:
        self.number = -1
        self.current: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def see(self, number: int, weights: dict[str, Tensor]) -> None:
        if number != self.number:
            self.number, self.before = number, self.current
            self.current = {name: tensor.clone() for name, tensor in weights.items()}


@attack
class OlderVersion(Maker):
    """The version before the claimed one: saves the download."""

    past = _Past()

    def make(self, lease: Lease, version: Version) -> Submission:
        self.past.see(version.number, self.policy.weights())
        return Maker.make(self, lease, version)

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        before = self.past.before
        with changed(self.policy, lambda name, w: before.get(name, w)):
            return Maker.answer(self, requests)
