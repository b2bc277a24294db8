"""Decimation: few points, no peak lost; histograms that count every value once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shoal.page.series import MAX_POINTS, columns, histogram
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


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 40))
def test_a_histogram_counts_every_value_once_and_its_bins_touch(values: list[float], bins: int) -> None:
    found = histogram(values, bins)
    assert sum(count for _, _, count in found) == len(values)
    assert found[0][0] == min(values)
    assert found[-1][1] == max(values)
    assert len(found) <= bins
    assert all(low <= high for low, high, _ in found)
