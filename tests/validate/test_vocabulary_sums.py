"""Sums over the vocabulary are those of float64, and no shortcut around noise misses a better token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ModelError
from shoal.generate.sampling import NoiseStream, Words, choose, gumbel
from shoal.validate.recompute import NUMERIC
from shoal.validate.vocabulary_sums import VocabularySums

ROWS = 3


def sums_of(logits_RV: torch.Tensor, tokens_R: torch.Tensor, width: int, bits: list[Words]) -> VocabularySums:
    sums = VocabularySums(tokens_R, NUMERIC, bits)
    for first in range(0, logits_RV.shape[1], width):
        sums.add(logits_RV[:, first : first + width].contiguous(), first)
    return sums


def noise(vocab: int, seed: int) -> list[Words]:
    return [NoiseStream(seed, row, vocab).next() for row in range(ROWS)]


@settings(deadline=None, max_examples=60)
@given(
    vocab=st.integers(1, 1500),
    width=st.integers(1, 1500),
    spread=st.sampled_from([0.0, 0.1, 3.0, 12.0, 200.0]),
    shift=st.sampled_from([-300.0, 0.0, 300.0]),
    rising=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_blocks_of_any_width_add_up_to_what_float64_says(
    vocab: int, width: int, spread: float, shift: float, rising: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn(ROWS, vocab, generator=generator) * spread + shift
    if rising:  # the worst order: the highest so far is always raised
        logits_RV = logits_RV.sort(dim=1).values
    tokens_R = torch.randint(vocab, (ROWS,), generator=generator)
    bits = noise(vocab, seed)
    sums = sums_of(logits_RV, tokens_R, width, bits)
    exact_RV = logits_RV.double()
    for power, found_R in zip(np.array(NUMERIC, dtype=np.float32), sums.log_sums().T, strict=True):
        expected_R = torch.logsumexp(exact_RV * float(power), dim=1).numpy()
        assert found_R == pytest.approx(expected_R, abs=1e-6, rel=1e-12)
    own_R = exact_RV.gather(1, tokens_R[:, None])[:, 0]
    assert (sums.logits() == own_R.numpy()).all()
    scores_RV = exact_RV.numpy() + gumbel(np.stack(bits))
    rows_R = np.arange(ROWS)
    shortfalls_R = sums.shortfalls()
    assert shortfalls_R == pytest.approx(scores_RV.max(axis=1) - scores_RV[rows_R, tokens_R.numpy()], abs=1e-9)


@pytest.mark.parametrize("width", [7, 64, 512])
def test_a_drawn_token_has_no_shortfall_and_any_other_has_one(width: int) -> None:
    logits_RV, bits = torch.randn(ROWS, 512, generator=torch.Generator().manual_seed(1)) * 4, noise(512, 2)
    drawn_R, logprobs_R = choose(logits_RV, bits)
    sums = sums_of(logits_RV, drawn_R, width, bits)
    assert sums.shortfalls() == pytest.approx(np.zeros(ROWS), abs=1e-12)
    assert sums.logprobs() == pytest.approx(logprobs_R.double().numpy(), abs=2e-6)
    others = sums_of(logits_RV, (drawn_R + 1) % 512, width, bits).shortfalls()
    assert others is not None
    assert (others > 0).all()


def test_the_last_bit_of_a_logarithm_makes_no_drawn_token_a_worse_one() -> None:
    """Files in which more than a few tokens have any shortfall are dropped, so it must be 0 and not nearly 0."""
    rows, vocab = 4000, 64
    logits_RV = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3))
    bits = [NoiseStream(5, row, vocab).next() for row in range(rows)]
    drawn_R, _ = choose(logits_RV, bits)
    shortfalls_R = sums_of(logits_RV, drawn_R, 64, bits).shortfalls()
    assert shortfalls_R is not None
    assert np.count_nonzero(shortfalls_R) == 0


def test_noise_that_only_one_token_in_four_billion_gets_still_wins() -> None:
    logits_RV = torch.zeros(ROWS, 300)
    logits_RV[:, 7] = 22.0
    bits = [np.full(300, 2**31, dtype=np.uint32) for _ in range(ROWS)]
    bits[1][299] = 2**32 - 1
    shortfalls_R = sums_of(logits_RV, torch.full((ROWS,), 7), 128, bits).shortfalls()
    assert shortfalls_R is not None
    assert shortfalls_R[1] > 0
    assert shortfalls_R[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused_by_row(bad: float) -> None:
    logits_RV = torch.zeros(ROWS, 40)
    logits_RV[2, 39] = bad
    with pytest.raises(ModelError, match="row 2 are not finite"):
        sums_of(logits_RV, torch.zeros(ROWS, dtype=torch.long), 16, noise(40, 0))


def test_tokens_that_a_model_masks_out_count_for_nothing() -> None:
    logits_RV = torch.zeros(ROWS, 40)
    logits_RV[:, 20:] = float("-inf")
    sums = VocabularySums(torch.zeros(ROWS, dtype=torch.long), NUMERIC)
    sums.add(logits_RV)
    assert sums.logprobs() == pytest.approx(np.full(ROWS, -np.log(20)), abs=1e-6)
    assert sums.shortfalls() is None
