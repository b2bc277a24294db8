"""Honest answers with proofs that prove nothing."""

import random
from dataclasses import replace

import torch
from torch import Tensor

from shoal import toploc
from shoal.attacks.base import attack
from shoal.exchange.interfaces import Version
from shoal.rollout.lease import Lease
from shoal.rollout.maker import Maker
from shoal.rollout.record import Submission

CHUNK, K = 32, 128


@attack
class ConstantProof(Maker):
    """A polynomial that gives the commonest of the proven values everywhere."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        honest = Maker.prove(self, states_TD)
        assert states_TD is not None
        forged = []
        size = 2 + 2 * K
        for number, chunk in enumerate(torch.split(states_TD.bfloat16(), CHUNK)):
            proof = honest[number * size : (number + 1) * size]
            middle = chunk.flatten()[chunk.flatten().abs().topk(min(K, chunk.numel())).indices].abs().median()
            value = int(middle.view(torch.int16)) % toploc.PRIME
            forged.append(proof[:2] + value.to_bytes(2, "little") + bytes(len(proof) - 4))
        return b"".join(forged)


@attack
class MeanProof(Maker):
    """States in which every token has the mean of its dimension: known once, right for ever."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        assert states_TD is not None
        return toploc.build(states_TD.mean(dim=0, keepdim=True).expand_as(states_TD).bfloat16().contiguous())


@attack
class FlippedProof(Maker):
    """States with the other sign."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        assert states_TD is not None
        return toploc.build(-states_TD.bfloat16())


@attack
class SwappedProofs(Maker):
    """Right proofs in the wrong places."""

    def make(self, lease: Lease, version: Version) -> Submission:
        honest = Maker.make(self, lease, version)
        size = 2 + 2 * K
        moved = []
        for number, sample in enumerate(honest.rollouts):
            chunks = [sample.proof[at : at + size] for at in range(0, len(sample.proof), size)]
            others = [r.proof for r in honest.rollouts if len(r.proof) == len(sample.proof) and r is not sample]
            swapped = b"".join(chunks[::-1]) if len(chunks) > 1 else others[number % len(others)] if others else b""
            moved.append(replace(sample, proof=swapped))
        return replace(honest, rollouts=moved)


@attack
class MissingProof(Maker):
    """The last chunk is not proven."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        return Maker.prove(self, states_TD)[: -(2 + 2 * K)]


@attack
class ExtraProof(Maker):
    """One chunk more than there is."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        honest = Maker.prove(self, states_TD)
        return honest + honest[-(2 + 2 * K) :]


@attack
class EmptyProof(Maker):
    """Nothing at all."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        del states_TD
        return b""


@attack
class RandomProof(Maker):
    """Bytes of the right length."""

    def prove(self, states_TD: Tensor | None) -> bytes:
        return random.Random(0).randbytes(len(Maker.prove(self, states_TD)))
