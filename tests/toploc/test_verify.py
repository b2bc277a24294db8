"""Honest noise is accepted; a proof that is malformed, missing or of something else is rejected, and never a crash."""

import numpy as np
import pytest
import torch

from shoal import toploc
from shoal.toploc import PRIME, ChunkResult, Thresholds

CHUNK, K = 32, 128


def gaussian(seed: int, tokens: int = 256, hidden: int = 576) -> torch.Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed))


def outlier_dimensions(seed: int, tokens: int = 256, hidden: int = 896, spread: float = 0.15) -> torch.Tensor:
    states = gaussian(seed, tokens, hidden)
    places = torch.tensor([3, 77, 400, 401, 895])
    states[:, places] = torch.tensor([20.0, -25, 30, 18, -40]) * (1 + spread * states[:, places])
    return states


def noisy(states: torch.Tensor, relative: float, seed: int = 99) -> torch.Tensor:
    return states * (1 + relative * torch.randn(states.shape, generator=torch.Generator().manual_seed(seed)))


def published_accepts(result: ChunkResult) -> bool:
    return result.exponent_mismatches <= 38 and result.mantissa_mean <= 10 and result.mantissa_median <= 8


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.005, 0.01])
@pytest.mark.parametrize("hidden", [64, 576, 5120])
def test_honest_noise_is_accepted(noise: float, hidden: int) -> None:
    for states in (gaussian(hidden, hidden=hidden), outlier_dimensions(1, hidden=max(hidden, 896))):
        results = toploc.verify(noisy(states, noise), toploc.build(states))
        assert [toploc.refusal(result) for result in results] == [None] * 8


@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_states_that_differ_much_are_rejected(noise: float) -> None:
    for states in (gaussian(2), outlier_dimensions(3)):
        results = toploc.verify(noisy(states, noise), toploc.build(states))
        assert not any(toploc.accepts(result) for result in results)


def test_the_proof_of_another_text_or_chunk_is_rejected() -> None:
    states = gaussian(4)
    proofs = toploc.build(states)
    size = len(proofs) // 8
    swapped = proofs[size : 2 * size] + proofs[:size] + proofs[2 * size :]
    assert [toploc.accepts(r) for r in toploc.verify(states, swapped)] == [False] * 2 + [True] * 6
    assert not any(toploc.accepts(r) for r in toploc.verify(states, toploc.build(gaussian(5))))


def test_statistics_are_those_of_the_definition() -> None:
    claimed, own = gaussian(6, 32).bfloat16(), noisy(gaussian(6, 32), 0.05).bfloat16()
    (proof,) = toploc.decode(toploc.build(claimed))
    (result,) = toploc.verify(own, toploc.build(claimed))
    bits = own.view(torch.int16).numpy().view(np.uint16).reshape(-1).astype(int)
    top = np.lexsort((np.arange(bits.size), -(bits & 0x7FFF)))[:K]
    pairs = [(int(bits[i]), proof(int(i))) for i in top]
    agreeing = [(a, b) for a, b in pairs if (a ^ b) & 0x7F80 == 0]
    errors = sorted(abs((a & 127) - (b & 127)) for a, b in agreeing)
    assert result.exponent_mismatches == K - len(agreeing) > 0
    assert result.mantissa_mean == pytest.approx(sum(errors) / len(errors))
    assert result.mantissa_median == errors[len(errors) // 2]
    assert result.sign_mismatches == sum((a ^ b) >> 15 for a, b in agreeing)


def test_a_proof_shifted_by_one_chunk_of_bytes_short_long_or_empty_is_a_reject_for_every_chunk() -> None:
    states = gaussian(7, 70)
    proofs = toploc.build(states)
    null = bytes(258)
    for wrong in (
        b"",
        b"\xff\xd9",
        proofs[:-1],
        proofs[:-2],
        proofs[:-258],
        proofs + b"\0",
        proofs + proofs[:258],
        null,
    ):
        results = toploc.verify(states, wrong)
        assert [(r.chunk, r.malformed) for r in results] == [(0, "length"), (1, "length"), (2, "length")]
        assert not toploc.accepts(results)
        assert not any(published_accepts(r) for r in results)


def test_no_results_are_no_acceptance() -> None:
    assert not toploc.accepts([])


@pytest.mark.parametrize("modulus", [0, 1, 2, 127, 32768, 65496, 65498, 65535])
def test_a_modulus_that_no_builder_takes_is_a_reject(modulus: int) -> None:
    states = gaussian(8, 64)
    proofs = toploc.build(states)
    first, second = toploc.verify(states, modulus.to_bytes(2, "big") + proofs[2:])
    assert first.malformed == "modulus"
    assert toploc.accepts(second)


def test_a_coefficient_outside_the_field_is_a_reject_even_if_it_means_the_same() -> None:
    states = gaussian(9, 32)
    numbers = np.frombuffer(toploc.build(states), ">u2").copy()
    small = int(np.flatnonzero(numbers < 39)[0]) if (numbers < 39).any() else 1
    numbers[small] = min(int(numbers[small]) + PRIME, 65535)
    (result,) = toploc.verify(states, numbers.tobytes())
    assert result.malformed == "coefficient"


def test_an_honest_polynomial_whose_highest_coefficient_is_zero_is_accepted() -> None:
    states = torch.randn(300_000, 8, generator=torch.Generator().manual_seed(4))
    proofs = np.frombuffer(toploc.build(states, 1, 8), ">u2").reshape(-1, 9)
    low = np.flatnonzero(proofs[:, -1] == 0)
    assert len(low) > 0
    for i in low:
        assert toploc.accepts(toploc.verify(states[i : i + 1], proofs[i].tobytes(), 1, 8))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5])
def test_states_that_are_all_one_value_have_a_constant_proof_that_is_accepted_for_them_alone(value: float) -> None:
    states = torch.full((40, 64), value)
    proofs = toploc.build(states)
    assert {proof.degree for proof in toploc.decode(proofs)} == {0}
    assert toploc.accepts(toploc.verify(states, proofs))
    assert [r.malformed for r in toploc.verify(gaussian(11, 40, 64), proofs)] == ["degree"] * 2


def test_float16_and_lists_do_not_end_the_process() -> None:
    states = gaussian(12, 64, 5120)
    proofs = toploc.build(states)
    with pytest.raises(toploc.ToplocError):
        toploc.verify(states.half(), proofs)
    assert toploc.verify(list(states.bfloat16()), proofs) == toploc.verify(states, proofs)


def test_the_list_form_heeds_the_modulus() -> None:
    states = gaussian(13, 32 * 30, 5120).bfloat16()
    proofs = toploc.build(list(states))
    assert min(proof.modulus for proof in toploc.decode(proofs)) < PRIME
    assert toploc.accepts(toploc.verify(list(states), proofs))


@pytest.mark.parametrize("proofs", [None, "ff", [b"ff"], 3, np.zeros(258, np.uint8)])
def test_proofs_that_are_no_bytes_are_the_callers_error(proofs: bytes) -> None:
    with pytest.raises(toploc.ToplocError, match="proofs are of type"):
        toploc.verify(gaussian(14, 32), proofs)


def test_views_of_bytes_are_bytes() -> None:
    states = gaussian(15, 32)
    proofs = toploc.build(states)
    assert toploc.verify(states, bytearray(proofs)) == toploc.verify(states, memoryview(proofs))  # type: ignore[arg-type]


def test_a_refusal_names_value_and_rule_and_thresholds_can_be_narrowed() -> None:
    states = gaussian(16, 32)
    (result,) = toploc.verify(noisy(states, 0.01), toploc.build(states))
    assert toploc.refusal(result) is None
    reason = toploc.refusal(result, Thresholds(mantissa_mean=0.1))
    assert reason is not None
    assert "chunk 0: mantissas differ by" in reason
    assert "0.1 is allowed" in reason
    assert not toploc.accepts(result._replace(mantissa_mean=float("nan")))


def test_counts_are_scaled_to_the_points() -> None:
    base = ChunkResult(0, None, 16, 4, 0.0, 0.0, 1, 0, 0, 0.0, 0.0)
    assert toploc.accepts(base)
    assert not toploc.accepts(base._replace(exponent_mismatches=5))
    assert not toploc.accepts(base._replace(sign_mismatches=2))
