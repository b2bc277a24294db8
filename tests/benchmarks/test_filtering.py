"""What the filter benchmark concludes from its runs."""

import json
from pathlib import Path

import pytest

from benchmarks.training.filtering import Outcome, conclude
from benchmarks.training.filtering_plot import curves_of, draw


def outcomes(*last: float, sampled: int) -> list[Outcome]:
    return [Outcome({0: 0.25, 10: reward}, sampled) for reward in last]


PLAIN = outcomes(0.4, 0.5, 0.45, sampled=100)
OFFLINE = outcomes(0.5, 0.6, 0.55, sampled=100)
ONLINE = outcomes(0.6, 0.6, 0.6, sampled=300)


def test_the_gaps_and_their_intervals_are_those_of_the_seeds() -> None:
    result = conclude(PLAIN, OFFLINE, ONLINE)
    values = json.loads(result.to_json())["values"]
    assert values["reward_filtered"] == pytest.approx(0.55)
    assert values["reward_filtered_ci"] == pytest.approx(4.302653 * 0.05 / 3**0.5)
    assert values["gap_filtered"] == pytest.approx(0.1)
    assert values["gap_filtered_ci"] == pytest.approx(0.0, abs=1e-9)
    assert values["reward_online_on_ci"] == pytest.approx(0.0, abs=1e-9)
    assert values["gap_online"] == pytest.approx(0.15)
    assert values["gap_online_ci"] == pytest.approx(4.302653 * 0.05 / 3**0.5)
    assert values["reward_unfiltered"] == values["reward_online_off"] == pytest.approx(0.45)
    assert values["reward_filtered_at_0"] == values["reward_base"] == 0.25
    assert result.ratios == {"samples_filtered_vs_unfiltered": 1.0, "samples_online_on_vs_off": 3.0}


def test_a_filter_that_ends_lower_does_not_meet_its_bar() -> None:
    result = conclude(OFFLINE, PLAIN, ONLINE)
    assert not result.met("gap_filtered")
    assert result.met("gap_online")


def test_the_figure_has_a_curve_of_each_side(tmp_path: Path) -> None:
    values = json.loads(conclude(PLAIN, OFFLINE, ONLINE).to_json())["values"]
    assert curves_of(values) == {
        "unfiltered": [(0, 0.25), (10, pytest.approx(0.45))],
        "filtered": [(0, 0.25), (10, pytest.approx(0.55))],
        "online_on": [(0, 0.25), (10, pytest.approx(0.6))],
    }
    draw(values, tmp_path / "filter.png")
    assert (tmp_path / "filter.png").read_bytes().startswith(b"\x89PNG")
