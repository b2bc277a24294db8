"""What is seen of an answer: forged proofs are as far off as can be, and noisy ones only as far as they are."""

import torch

from shoal import toploc
from shoal.validate.numerics.observe import NO_PROOF, chunk_distances


def states(seed: int) -> torch.Tensor:
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)) * 3


def test_noise_beyond_every_published_threshold_is_a_distance_and_not_a_forgery() -> None:
    own = states(1)
    noisy = own * (1 + 0.1 * torch.randn(own.shape, generator=torch.Generator().manual_seed(2)).clamp(-1.2, 1.2))
    proof = toploc.build(noisy.bfloat16())
    (chunk,) = toploc.verify(own.bfloat16(), proof)
    assert toploc.refusal(chunk) is not None
    (distance,) = chunk_distances(own, proof)
    assert 10 < distance < 64


def test_a_proof_of_other_states_or_of_nothing_is_as_far_off_as_can_be() -> None:
    own, other = states(1), states(3)
    for proof in (toploc.build(other.bfloat16()), bytes(258)):
        assert chunk_distances(own, proof).tolist() == [NO_PROOF]
