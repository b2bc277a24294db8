"""Shares and differences: unbiased, with intervals that hold what they promise."""

from itertools import combinations
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.evals.stats import compare, mean_of_tasks, pass_at_k, rank_correlation, wilson


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_right_answer(case: tuple[int, int, int]) -> None:
    samples, solved, k = case
    choices = list(combinations([True] * solved + [False] * (samples - solved), k))
    assert pass_at_k(samples, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_is_unbiased_where_the_plain_estimate_is_not() -> None:
    rng, rate, k, samples = Random(0), 0.2, 4, 8
    true = 1 - (1 - rate) ** k
    drawn = [sum(rng.random() < rate for _ in range(samples)) for _ in range(20_000)]
    unbiased = sum(pass_at_k(samples, solved, k) for solved in drawn) / len(drawn)
    plain = sum(1 - (1 - solved / samples) ** k for solved in drawn) / len(drawn)
    assert unbiased == pytest.approx(true, abs=0.01)
    assert plain < true - 0.03


def test_too_few_samples_are_named() -> None:
    with pytest.raises(ValueError, match="pass@8 needs at least 8 samples of each task, there are 4"):
        pass_at_k(4, 1, 8)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.97])
def test_an_interval_holds_the_truth_about_as_often_as_it_says(rate: float) -> None:
    rng = Random(1)
    held = 0
    for _ in range(1000):
        values = [float(rng.random() < rate) for _ in range(100)]
        estimate = mean_of_tasks(values)
        held += estimate.low <= rate <= estimate.high
    assert held / 1000 >= 0.92


def test_answers_to_one_task_do_not_count_as_many_tasks() -> None:
    few = mean_of_tasks([0.0, 1.0, 0.5, 0.5])
    assert few.high - few.low > 0.5
    assert wilson(2, 4)[1] - wilson(2, 4)[0] > wilson(200, 400)[1] - wilson(200, 400)[0]


def test_a_real_difference_is_significant_and_none_is_not() -> None:
    rng = Random(2)
    first = [rng.random() * 0.5 for _ in range(200)]
    better = [value + 0.1 * rng.random() for value in first]
    same = [value + 0.1 * (rng.random() - 0.5) for value in first]
    assert compare(first, better).p_value < 0.001
    assert compare(first, better).mean.low > 0
    assert compare(first, same).p_value > 0.01
    assert compare(first, first).p_value == 1.0


def test_chance_is_called_significant_as_seldom_as_it_should() -> None:
    rng = Random(3)
    called = 0
    for _ in range(60):
        first, second = ([float(rng.random() < 0.5) for _ in range(40)] for _ in range(2))
        called += compare(first, second).p_value < 0.05
    assert called <= 9


def test_a_rank_correlation_knows_order_alone_and_lets_equal_values_share_a_rank() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 10, 11, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [9, 7, 5, 3]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2, 2], [5, 5, 8, 8]) == pytest.approx(1.0)
    # Ranks 1.5, 1.5, 3.5, 3.5 and 1, 2, 3, 4: 4 / sqrt(4 * 5).
    assert rank_correlation([1, 1, 2, 2], [5, 6, 7, 8]) == pytest.approx(4 / 20**0.5)
    assert isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_a_rank_correlation_is_the_same_from_both_sides_and_turns_its_sign_with_one(
    pairs: list[tuple[int, int]],
) -> None:
    first, second = zip(*pairs, strict=True)
    found = rank_correlation(first, second)
    assert isnan(found) == (len(set(first)) == 1 or len(set(second)) == 1)
    if not isnan(found):
        assert -1 - 1e-9 <= found <= 1 + 1e-9
        assert rank_correlation(second, first) == pytest.approx(found)
        assert rank_correlation([-value for value in first], second) == pytest.approx(-found)
