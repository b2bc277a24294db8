"""Decimation: few points, no peak lost; histograms that count every value once."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.page.series import LABELLED, MAX_POINTS, columns, histogram, is_in_bin
from shoal.telemetry.metrics import Entry

NUMBERS = st.floats(-1e6, 1e6)


def entries(values: Sequence[float | None]) -> list[Entry]:
    return [{"step": step, "reward": value} for step, value in enumerate(values)]


def test_a_short_series_comes_as_it_is() -> None:
    found = columns(entries([0.5, None, 0.25]), ["reward", "missing"])
    assert found == {"per": 1, "x": [0, 1, 2], "mean": {"reward": [0.5, None, 0.25]}, "low": {}, "high": {}}


def test_an_outlier_of_one_step_in_ten_thousand_is_still_seen() -> None:
    found = columns(entries([0.5] * 7777 + [99.0] + [0.5] * 2222), ["reward"])
    assert len(found["x"]) <= MAX_POINTS  # type: ignore[arg-type]
    assert max(found["high"]["reward"]) == 99.0  # type: ignore[index]
    assert min(found["low"]["reward"]) == 0.5  # type: ignore[index]


def test_a_curve_that_hardly_moves_is_not_made_a_staircase_by_rounding() -> None:
    found = columns(entries([5.58 + 1e-5 * step for step in range(20)]), ["reward"])
    assert len(set(found["mean"]["reward"])) == 20  # type: ignore[index]


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 40))
def test_a_histogram_counts_every_value_once_and_its_bins_touch(values: list[float], bins: int) -> None:
    found = histogram(values, bins)
    assert sum(count for _, _, count in found) == len(values)
    assert found[0][0] == min(values)
    assert found[-1][1] == max(values)
    assert len(found) <= bins
    assert all(low <= high for low, high, _ in found)


@given(st.lists(NUMBERS | st.integers(0, 96).map(float), min_size=1, max_size=300), st.integers(1, 40))
def test_a_value_is_in_the_one_bin_that_counts_it(values: list[float], bins: int) -> None:
    found = histogram(values, bins)
    filtered = [sum(is_in_bin(value, low, high, max(values)) for value in values) for low, high, _ in found]
    assert filtered == [count for _, _, count in found]


@given(st.sets(st.integers(-50, 20_000), min_size=1, max_size=40))
def test_a_place_on_the_axis_of_a_histogram_is_a_value_unless_each_bar_has_its_label(values: set[int]) -> None:
    found = histogram([float(value) for value in values], 24)
    if len(found) > LABELLED:
        steps = [after[0] - before[0] for before, after in pairwise(found)]
        assert max(steps) == pytest.approx(min(steps))
    assert sum(count for _, _, count in found) == len(values)
