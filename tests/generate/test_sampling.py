"""The noise is what the docstring says, bit for bit, and the shortcut around most of it changes no token."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import ModelError
from shoal.generate.sampling import NoiseStream, Words, choose, greedy, gumbel, words

MASK = 2**64 - 1
# Upper 0.1 % points of the chi-square distribution with 7 degrees of freedom (any table).
CHI_SQUARE_7 = 24.32

Logits = npt.NDArray[np.float32]


def philox_block(key: tuple[int, int], counter: int) -> list[int]:
    """Four 64-bit words of Philox 4x64-10, from the paper alone (Salmon et al., SC 2011, section 4.3)."""
    x = [counter >> (64 * i) & MASK for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * x[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * x[2], 2**64)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return x


def bits_by_the_book(seed: int, sample: int, vocab: int, position: int, token: int) -> int:
    """The 32 bits of one token as the module's docstring specifies them."""
    word = position * (math.ceil(vocab / 8) * 4) + token // 2
    value = philox_block((seed, sample), word // 4 + 1)[word % 4]  # the counter is stepped before each block
    return value >> 32 if token % 2 else value & 0xFFFFFFFF


def reference_tokens(logits_BV: Logits, bits: list[Words]) -> list[int]:
    """argmax(logits + g) over every token, in float64, without a shortcut."""
    scores_BV = logits_BV.astype(np.float64) + gumbel(np.stack(bits))
    return [int(token) for token in scores_BV.argmax(axis=1)]


def chosen(logits_BV: Logits, bits: list[Words]) -> list[int]:
    tokens_B, _ = choose(torch.from_numpy(logits_BV), bits)
    return [int(token) for token in tokens_B]


def noise(seed: int, rows: int, vocab: int) -> list[Words]:
    return [NoiseStream(seed, row, vocab).next() for row in range(rows)]


def test_the_generator_gives_the_published_known_answer() -> None:
    # kat_vectors of Random123, philox4x64 10: counter and key all zero.
    assert philox_block((0, 0), 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, MASK),
    sample=st.integers(0, MASK),
    vocab=st.sampled_from([1, 2, 7, 8, 9, 265, 4096, 4097, 49152]),
    position=st.integers(0, 40),
    pick=st.floats(0, 1, exclude_max=True),
)
@example(seed=MASK, sample=MASK, vocab=49152, position=40, pick=0.999)
@example(seed=1, sample=0, vocab=8, position=0, pick=0.0)
@example(seed=0, sample=1, vocab=8, position=0, pick=0.0)
def test_every_bit_follows_from_seed_sample_position_and_token_as_specified(
    seed: int, sample: int, vocab: int, position: int, pick: float
) -> None:
    token = int(pick * vocab)
    drawn = NoiseStream(seed, sample, vocab, position).next()
    assert drawn.shape == (vocab,)
    assert int(drawn[token]) == bits_by_the_book(seed, sample, vocab, position, token)


@settings(max_examples=40, deadline=None)
@given(vocab=st.integers(1, 6000), skip=st.integers(0, 50), seed=st.integers(0, MASK))
def test_skipping_to_a_position_equals_drawing_up_to_it(vocab: int, skip: int, seed: int) -> None:
    sequential = NoiseStream(seed, 3, vocab)
    for _ in range(skip):
        sequential.next()
    skipped = NoiseStream(seed, 3, vocab, position=skip)
    for _ in range(3):
        assert np.array_equal(sequential.next(), skipped.next())


def test_noise_already_handed_out_is_not_overwritten_by_later_draws() -> None:
    stream = NoiseStream(5, 0, 300)
    first = stream.next()
    kept = first.copy()
    for _ in range(40):
        stream.next()
    assert np.array_equal(first, kept)


def test_a_position_owns_whole_blocks_with_room_for_every_token() -> None:
    assert [words(v) for v in (1, 8, 9, 16, 265, 49152)] == [4, 4, 8, 8, 136, 24576]


def test_gumbel_noise_is_finite_at_both_ends_and_rises_with_the_bits() -> None:
    ends = gumbel(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], dtype=np.uint32))
    assert np.isfinite(ends).all()
    assert (np.diff(ends) > 0).all()
    assert ends[0] == pytest.approx(-math.log(33 * math.log(2)))  # u = 2**-33
    assert ends[-1] == pytest.approx(33 * math.log(2))  # u = 1 - 2**-33, and -log(u) is 2**-33 next to 1


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 30.0, 1000.0])
@pytest.mark.parametrize("vocab", [2, 9, 265, 49152])
def test_tokens_are_those_of_the_full_argmax_over_the_vocabulary(vocab: int, spread: float) -> None:
    rng = np.random.default_rng([vocab, int(spread * 100)])
    rows = 6 if vocab > 1000 else 200
    logits_BV = (spread * rng.standard_normal((rows, vocab))).astype(np.float32)
    bits = noise(int(rng.integers(2**32)), rows, vocab)
    assert chosen(logits_BV, bits) == reference_tokens(logits_BV, bits)


@pytest.mark.parametrize("lead", [4.0, 8.0, 12.0, 16.0, 22.0, 40.0])
def test_a_peak_over_a_flat_vocabulary_is_beaten_exactly_as_often_as_it_should_be(lead: float) -> None:
    # At 10.8 = log(49152) nats the peak holds half of the mass: both outcomes occur often around it.
    rows, vocab = 24, 49152
    logits_BV = np.zeros((rows, vocab), dtype=np.float32)
    logits_BV[:, 77] = lead
    bits = noise(int(lead), rows, vocab)
    assert chosen(logits_BV, bits) == reference_tokens(logits_BV, bits)


# Few values, many of them: ties, ends of the range, and logits exactly `NEAR` apart.
edge_bits = st.sampled_from([0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1]) | st.integers(0, 2**32 - 1)
edge_logits = st.sampled_from([0.0, -8.0, 8.0, -0.5, 3.14159, -1e4, float("-inf")]) | st.floats(-60, 60, width=32)


@settings(max_examples=400, deadline=None)
@given(rows=st.lists(st.lists(st.tuples(edge_logits, edge_bits), min_size=5, max_size=5), min_size=1, max_size=4))
def test_no_choice_of_logits_and_bits_makes_the_shortcut_err(rows: list[list[tuple[float, int]]]) -> None:
    logits_BV = np.array([[logit for logit, _ in row] for row in rows], dtype=np.float32)
    logits_BV[np.isneginf(logits_BV).all(axis=1), 0] = 0.0
    bits = [np.array([b for _, b in row], dtype=np.uint32) for row in rows]
    assert chosen(logits_BV, bits) == reference_tokens(logits_BV, bits)


@pytest.mark.parametrize("below", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("own", [0, 1000, 2**31])
@pytest.mark.parametrize("best", ["exact", "rounded"])
def test_the_shortcut_is_exact_at_its_own_threshold(best: str, own: int, below: int) -> None:
    # The rival stands 8 nats below the best, give or take the least that float32 knows, and its noise is just enough
    # to win or just not. Where best - 8 is not a float32, a threshold that was rounded up would dismiss a winner.
    start = 1.0 if best == "exact" else 3.0
    lead = next(
        value
        for value in np.linspace(start, start + 1, 2000, dtype=np.float32)
        if best == "exact" or float(np.float32(value - np.float32(8))) > float(value) - 8 + 2e-7
    )
    rival = np.float32(lead - np.float32(8))
    for _ in range(abs(below)):
        rival = np.nextafter(rival, np.float32(math.copysign(np.inf, -below)))
    needed = float(lead) + float(gumbel(np.array([own], dtype=np.uint32))[0]) - float(rival)
    least = round(2**32 * math.exp(-math.exp(-needed)) - 0.5)
    logits_1V = np.array([[lead, rival]], dtype=np.float32)
    winners = set()
    for bits in range(least - 20, min(least + 20, 2**32)):
        row = [np.array([own, bits], dtype=np.uint32)]
        expected = reference_tokens(logits_1V, row)
        assert chosen(logits_1V, row) == expected, bits - least
        winners.add(expected[0])
    assert winners == {0, 1}


def test_ties_go_to_the_lowest_token() -> None:
    bits = np.full(9, 12345, dtype=np.uint32)
    assert chosen(np.zeros((2, 9), dtype=np.float32), [bits, bits]) == [0, 0]


def test_a_token_of_probability_zero_is_never_chosen() -> None:
    logits_BV = np.full((64, 50), -np.inf, dtype=np.float32)
    logits_BV[:, 17] = -3.0
    assert set(chosen(logits_BV, noise(1, 64, 50))) == {17}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_refused_not_sampled_from(bad: float) -> None:
    logits_BV = np.zeros((3, 20), dtype=np.float32)
    logits_BV[1, 4] = bad
    with pytest.raises(ModelError, match="not finite"):
        chosen(logits_BV, noise(0, 3, 20))


def test_a_row_without_any_possible_token_is_refused() -> None:
    logits_BV = np.full((1, 20), -np.inf, dtype=np.float32)
    with pytest.raises(ModelError, match="not finite"):
        chosen(logits_BV, noise(0, 1, 20))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_follow_the_softmax_at_each_temperature(temperature: float) -> None:
    draws, vocab = 50_000, 8
    scaled_V = torch.tensor([1.5, 0.2, -0.3, 0.0, 0.9, -1.0, 0.4, -0.6]) / temperature
    stream = NoiseStream(2024, 9, vocab)
    tokens_N, _ = choose(scaled_V.expand(draws, vocab).contiguous(), [stream.next() for _ in range(draws)])
    expected_V = draws * scaled_V.double().softmax(0)
    observed_V = torch.bincount(tokens_N, minlength=vocab)
    assert float(((observed_V - expected_V) ** 2 / expected_V).sum()) < CHI_SQUARE_7


def test_neighbouring_samples_positions_and_seeds_draw_independent_noise() -> None:
    streams = {
        "sample": [NoiseStream(1, s, 265).next() for s in range(40)],
        "seed": [NoiseStream(s, 1, 265).next() for s in range(40)],
        "position": [NoiseStream(1, 1, 265, p).next() for p in range(40)],
    }
    for name, rows in streams.items():
        correlation = np.corrcoef(np.stack(rows).astype(np.float64))
        # 780 pairs of 265 values: 0.3 is almost five standard deviations.
        assert np.abs(correlation - np.eye(40)).max() < 0.3, name


def test_log_probs_are_those_of_the_softmax_that_was_sampled() -> None:
    scaled_BV = 3 * torch.randn(50, 265, generator=torch.Generator().manual_seed(0))
    tokens_B, logp_B = choose(scaled_BV, noise(3, 50, 265))
    expected_B = scaled_BV.double().log_softmax(1).gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    assert torch.allclose(logp_B.double(), expected_B, atol=1e-5)


def test_greedy_takes_the_likeliest_token_and_its_log_prob() -> None:
    tokens_B, logp_B = greedy(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, -1.0]]))
    assert tokens_B.tolist() == [1, 0]
    assert logp_B.tolist() == pytest.approx([-0.40761, -0.70230], abs=1e-4)
