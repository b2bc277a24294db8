"""Substituted weights: quantised, smaller, perturbed or older than the claimed version."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.attacks.base import attack, fewer_layers
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.validate.numerics.alternatives import int_rounded, with_weights

# A neighbour's weights differ by this share of a matrix's spread, as after a short fine-tuning.
NEIGHBOUR = 0.01


@attack
class Int8(Maker):
    """Weights in 8 bits: half the memory of bf16."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with with_weights(self.policy, lambda _, w: int_rounded(127, w), "an attack"):
            return Maker.answer(self, requests)


@attack
class Int4(Maker):
    """Weights in 4 bits: a quarter of the memory."""

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with with_weights(self.policy, lambda _, w: int_rounded(7, w), "an attack"):
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
            if weights.ndim != 2:
                return weights
            noise = torch.randn(weights.shape, generator=generator)
            return weights + (NEIGHBOUR * weights.float().std() * noise).to(weights.dtype)

        with with_weights(self.policy, nudge, "an attack"):
            return Maker.answer(self, requests)


@attack
class OlderVersion(Maker):
    """The version before the claimed one: saves the download. It is honest until there is one."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.seen: Version | None = None
        self.current: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def make(self, lease: Lease, version: Version) -> Submission:
        if version != self.seen:
            self.seen, self.before = version, self.current
            self.current = {name: tensor.clone() for name, tensor in self.policy.weights().items()}
        return Maker.make(self, lease, version)

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        with with_weights(self.policy, lambda name, w: self.before.get(name, w), "an attack"):
            return Maker.answer(self, requests)
