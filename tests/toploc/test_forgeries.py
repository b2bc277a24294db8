"""Proofs made without computing the states: each passes the published rule, and is refused by ours."""

from collections.abc import Iterable

import numpy as np
import torch

from shoal import toploc
from shoal.toploc import PRIME, ChunkResult, Proof, Thresholds

ALL_BUT_GUESS = Thresholds(min_guess_error=float("inf"))


def published_accepts(result: ChunkResult) -> bool:
    return result.exponent_mismatches <= 38 and result.mantissa_mean <= 10 and result.mantissa_median <= 8


def published_share(states: torch.Tensor, proofs: Iterable[Proof]) -> float:
    """The share of chunks that the published rule accepts, by its definition: without degree, sign or guess."""
    accepted = []
    for i, proof in enumerate(proofs):
        bits = states[32 * i : 32 * i + 32].bfloat16().view(torch.int16).numpy().view(np.uint16).reshape(-1).astype(int)
        top = np.lexsort((np.arange(bits.size), -(bits & 0x7FFF)))[:128]
        pairs = [(int(bits[j]), proof(int(j))) for j in top]
        errors = sorted(abs((a & 127) - (b & 127)) for a, b in pairs if (a ^ b) & 0x7F80 == 0)
        accepted.append(len(errors) >= 90 and sum(errors) <= 10 * len(errors) and errors[len(errors) // 2] <= 8)
    return sum(accepted) / len(accepted)


def outliers(seed: int, hidden: int = 896, dimensions: int = 4, spread: float = 0.05) -> torch.Tensor:
    """States whose largest values are those of a few dimensions, each near a value of its own."""
    states = torch.randn(32 * 20, hidden, generator=torch.Generator().manual_seed(seed))
    places = torch.arange(dimensions) * 37 + 5
    usual = torch.linspace(20, 28, dimensions) * torch.tensor([1.0, -1.0]).repeat(dimensions)[:dimensions]
    states[:, places] = usual * (1 + spread * states[:, places])
    return states


def test_a_constant_polynomial_is_refused() -> None:
    states = torch.randn(32 * 20, 5120, generator=torch.Generator().manual_seed(0))
    typical = int(torch.tensor(3.5).bfloat16().view(torch.int16))
    forged = [Proof(PRIME, (typical, *[0] * 127))] * 20
    assert published_share(states, forged) > 0.9
    assert not any(toploc.accepts(r) for r in toploc.verify(states, toploc.encode(forged)))


def test_a_constant_is_refused_for_its_signs_even_if_its_degree_is_disguised() -> None:
    states = torch.randn(32 * 20, 5120, generator=torch.Generator().manual_seed(1))
    values = states.abs().clamp(min=3.44, max=3.46)  # the right positions, one value, no signs
    values[states.abs() < 3.2] = 0
    results = toploc.verify(states, toploc.build(values))
    assert all(r.malformed is None and r.sign_mismatches > 20 for r in results)
    assert not any(toploc.accepts(r) for r in results)


def test_sign_flipped_states_are_refused() -> None:
    states = torch.randn(32 * 20, 576, generator=torch.Generator().manual_seed(2))
    results = toploc.verify(states, toploc.build(-states))
    assert all(published_accepts(r) and r.sign_mismatches == 128 for r in results)
    assert not any(toploc.accepts(r) for r in results)


def test_the_usual_value_of_each_dimension_is_refused() -> None:
    states = outliers(3)
    results = toploc.verify(states, toploc.build(states.mean(0).expand_as(states)))
    assert sum(published_accepts(r) for r in results) >= 18
    assert not any(toploc.accepts(r) for r in results)
    honest = states * (1 + 0.005 * torch.randn(states.shape, generator=torch.Generator().manual_seed(4)))
    assert toploc.accepts(toploc.verify(honest, toploc.build(states)))


def test_the_usual_value_under_a_modulus_that_merges_tokens_is_refused() -> None:
    hidden, modulus = 5120, 12 * 5120
    states = outliers(5, hidden, dimensions=10, spread=0.02)
    usual = states.mean(0)
    places = [t * hidden + 37 * d + 5 for t in range(12) for d in range(10)]
    # Interpolated by building over states of one chunk that has just these values and eight more.
    canvas = torch.zeros(13, hidden)
    canvas.view(-1)[places] = usual[[p % hidden for p in places]]
    canvas[12, :8] = 1.0
    (proof,) = toploc.decode(toploc.build(canvas, 13, 128))
    forged = [Proof(modulus, proof.coefficients)] * 20
    results = toploc.verify(states, toploc.encode(forged))
    assert all(published_accepts(r) and r.malformed is None for r in results)
    assert not any(toploc.accepts(r, ALL_BUT_GUESS) for r in results)
    assert not any(toploc.accepts(r) for r in results)
