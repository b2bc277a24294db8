"""The GPU kernel draws numpy's bits, our specification's tokens, and their log-probs: run in Triton's interpreter."""

import os

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in Triton's interpreter: TRITON_INTERPRET=1, as in make test-vllm", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed: make test-vllm has it")

from shoal.generate.sampling import NoiseStream, choose
from shoal.generate.vllm.noise_kernel import TOKENS, draw_on_device, noise_bits

CPU = torch.device("cpu")
SEEDS = [0, 1, 12345, (1 << 63) + 5, (1 << 64) - 1]
SAMPLES = [0, 3, (1 << 64) - 1, 7, 1 << 40]
POSITIONS = [0, 1, 31, 1000, 32767]


def expected_bits(vocab: int) -> np.ndarray:
    keys = zip(SEEDS, SAMPLES, POSITIONS, strict=True)
    return np.stack([NoiseStream(seed, sample, vocab, position).next() for seed, sample, position in keys])


@pytest.mark.parametrize("vocab", [1, 7, 8, 9, 260, TOKENS, TOKENS + 1, 3 * TOKENS - 5])
def test_every_bit_of_the_noise_is_numpys(vocab: int) -> None:
    found = noise_bits(SEEDS, SAMPLES, POSITIONS, vocab, CPU).numpy().view(np.uint32)
    assert np.array_equal(found, expected_bits(vocab))


@pytest.mark.parametrize("vocab", [1, 9, 260, TOKENS + 1, 2 * TOKENS + 77])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_tokens_and_log_probs_are_those_of_the_specification(vocab: int, temperature: float) -> None:
    logits = 5 * torch.randn(len(SEEDS), vocab, generator=torch.Generator().manual_seed(vocab))
    tokens, logp = draw_on_device(logits, SEEDS, SAMPLES, POSITIONS, [temperature] * len(SEEDS))
    own_tokens, own_logp = choose(logits / temperature, list(expected_bits(vocab)))
    assert tokens.tolist() == own_tokens.tolist()
    assert float((logp - own_logp).abs().max()) < 1e-5


def test_rows_may_have_temperatures_of_their_own() -> None:
    logits, temperatures = (
        5 * torch.randn(5, 999, generator=torch.Generator().manual_seed(1)),
        [0.3, 0.6, 1.0, 1.5, 4.0],
    )
    tokens, _ = draw_on_device(logits, SEEDS, SAMPLES, POSITIONS, temperatures)
    for row, temperature in enumerate(temperatures):
        own, _ = choose(logits[row : row + 1] / temperature, [expected_bits(999)[row]])
        assert tokens[row] == own[0]


@pytest.mark.parametrize("vocab", [600, 3 * TOKENS - 5])
def test_tokens_that_are_forbidden_are_never_drawn(vocab: int) -> None:
    """Also where a program's part of the vocabulary is forbidden as a whole."""
    logits = torch.full((5, vocab), float("-inf"))
    logits[:, 417] = -3.0
    tokens, logp = draw_on_device(logits, SEEDS, SAMPLES, POSITIONS, [1.0] * 5)
    assert tokens.tolist() == [417] * 5
    assert logp.tolist() == [0.0] * 5


def test_a_logit_that_is_no_number_shows_in_the_log_prob() -> None:
    logits = torch.zeros(5, TOKENS + 9)
    logits[2, TOKENS + 3] = float("nan")
    _, logp = draw_on_device(logits, SEEDS, SAMPLES, POSITIONS, [1.0] * 5)
    assert logp.isnan().tolist() == [False, False, True, False, False]
