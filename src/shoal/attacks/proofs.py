"""Honest answers with proofs that prove nothing."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shoal import toploc
from shoal.attacks.base import attack
from shoal.generate.engine import Completion, Request
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission

CHUNK = 32


def split(proof: bytes, tokens: int, hidden: int) -> list[bytes]:
    """The proof of each chunk."""
    whole = toploc.proof_size(CHUNK, hidden)
    return [proof[whole * n : whole * (n + 1)] for n in range(-(-tokens // CHUNK))]


def states_of(answer: Completion) -> Tensor:
    assert answer.hidden_TD is not None
    return answer.hidden_TD


@attack
class ConstantProof(Maker):
    """A polynomial that gives the commonest of the proven values everywhere."""

    asks_for_states = True

    def prove(self, answer: Completion) -> bytes:
        states_TD = states_of(answer)
        proofs = split(answer.proof, *states_TD.shape)
        forged = []
        for proof, chunk in zip(proofs, torch.split(states_TD.bfloat16(), CHUNK), strict=True):
            points = len(proof) // 2 - 1
            middle = chunk.flatten().abs().topk(points).values.median()
            value = int(middle.view(torch.int16)) % toploc.PRIME
            forged.append(proof[:2] + value.to_bytes(2, "big") + bytes(len(proof) - 4))
        return b"".join(forged)


@attack
class MeanProof(Maker):
    """States in which every token has the mean of its dimension over all answers: known once, right for ever."""

    asks_for_states = True

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        honest = Maker.answer(self, requests)
        mean_D = torch.cat([states_of(c) for c in honest]).float().mean(dim=0).bfloat16()
        return [replace(c, proof=toploc.build(mean_D.expand(len(c.tokens), -1).contiguous())) for c in honest]


@attack
class OwnMeanProof(Maker):
    """States in which every token has the mean of its dimension over its own answer: as near as a mean comes."""

    asks_for_states = True

    def prove(self, answer: Completion) -> bytes:
        states_TD = states_of(answer)
        mean_1D = states_TD.float().mean(dim=0, keepdim=True)
        return toploc.build(mean_1D.expand_as(states_TD).bfloat16().contiguous())


@attack
class FlippedProof(Maker):
    """States with the other sign."""

    asks_for_states = True

    def prove(self, answer: Completion) -> bytes:
        states_TD = states_of(answer)
        return toploc.build(-states_TD.bfloat16())


@attack
class SwappedProofs(Maker):
    """Right proofs in the wrong places: the first chunks of an answer change places, or else of two answers."""

    def make(self, lease: Lease, version: Version) -> Submission:
        honest = Maker.make(self, lease, version)
        return replace(honest, rollouts=[replace(r, proof=self.swapped(r, honest.rollouts)) for r in honest.rollouts])

    def swapped(self, sample: Rollout, others: Sequence[Rollout]) -> bytes:
        chunks = split(sample.proof, len(sample.completion), self.policy.hidden_size)
        if len(chunks) > 1 and len(chunks[0]) == len(chunks[1]):
            return b"".join([chunks[1], chunks[0], *chunks[2:]])
        # Answers that begin alike and are as short have the same proof.
        fit = (r.proof for r in others if len(r.proof) == len(sample.proof) and r.proof != sample.proof)
        return next(fit, sample.proof)


@attack
class MissingProof(Maker):
    """The last chunk is not proven."""

    def prove(self, answer: Completion) -> bytes:
        return b"".join(split(answer.proof, len(answer.tokens), self.policy.hidden_size)[:-1])


@attack
class ExtraProof(Maker):
    """One chunk more than there is."""

    def prove(self, answer: Completion) -> bytes:
        proofs = split(answer.proof, len(answer.tokens), self.policy.hidden_size)
        return b"".join([*proofs, proofs[-1]])


@attack
class EmptyProof(Maker):
    """Nothing at all."""

    def prove(self, answer: Completion) -> bytes:
        del answer
        return b""


@attack
class RandomProof(Maker):
    """Bytes of the right length."""

    def prove(self, answer: Completion) -> bytes:
        return random.Random(0).randbytes(len(answer.proof))
