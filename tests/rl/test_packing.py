import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.rl.bin_packing import fill, first_fit_decreasing


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[int], int]:
    budget = draw(st.integers(1, 50))
    return draw(st.lists(st.integers(1, budget), max_size=60)), budget


def naive_first_fit_decreasing(lengths: list[int], budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for members in bins:
            if sum(lengths[i] for i in members) + lengths[index] <= budget:
                members.append(index)
                break
        else:
            bins.append([index])
    return bins


def test_the_longest_sample_goes_first_into_the_leftmost_bin_with_room() -> None:
    # By length: 7 (index 1), 5 (3), 4 (0), 3 (2), 3 (4), with 10 tokens a bin.
    # 7 -> bin 0. 5 -> bin 1. 4 -> bin 1, now 9. 3 -> bin 0, now 10. 3 -> bin 2.
    assert first_fit_decreasing([4, 7, 3, 5, 3], 10) == [[1, 2], [3, 0], [4]]


def test_samples_of_equal_length_keep_their_order() -> None:
    assert first_fit_decreasing([5, 5, 5, 5], 10) == [[0, 1], [2, 3]]


def test_no_samples_need_no_bins() -> None:
    assert first_fit_decreasing([], 10) == []


@given(packings())
def test_every_sample_is_packed_exactly_once(case: tuple[list[int], int]) -> None:
    lengths, budget = case
    bins = first_fit_decreasing(lengths, budget)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))


@given(packings())
def test_no_bin_is_empty_or_over_budget(case: tuple[list[int], int]) -> None:
    lengths, budget = case
    for members in first_fit_decreasing(lengths, budget):
        assert 1 <= sum(lengths[index] for index in members) <= budget


@given(packings())
def test_the_tree_packs_as_a_search_through_all_bins_would(case: tuple[list[int], int]) -> None:
    lengths, budget = case
    assert first_fit_decreasing(lengths, budget) == naive_first_fit_decreasing(lengths, budget)


@pytest.mark.parametrize(("length", "shown"), [(11, "length 11"), (0, "length 0"), (-3, "length -3")])
def test_a_length_that_fits_no_bin_is_refused_by_index_value_and_rule(length: int, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"sample 2: {shown}, allowed 1\.\.10 tokens"):
        first_fit_decreasing([1, 10, length], 10)


def test_fill_is_the_share_of_tokens_that_are_not_padding() -> None:
    # 7 + 3 and 5 + 4 and 3: 22 tokens in 3 bins of 10.
    assert fill([[1, 2], [3, 0], [4]], [4, 7, 3, 5, 3], 10) == pytest.approx(22 / 30)
    assert fill([], [], 10) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_ragged_samples_fill_their_bins_to_95_percent(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(16, 512) for _ in range(512)]
    assert fill(first_fit_decreasing(lengths, 4096), lengths, 4096) >= 0.95


def test_fifty_thousand_samples_are_packed_within_seconds() -> None:
    # 0.4 s; a search through all of some 25,000 bins would take 10^9 steps.
    rng = random.Random(0)
    lengths = [rng.randint(1, 4096) for _ in range(50_000)]
    started = time.perf_counter()
    first_fit_decreasing(lengths, 4096)
    assert time.perf_counter() - started < 10
