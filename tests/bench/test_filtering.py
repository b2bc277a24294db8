"""What the filter bench concludes from its runs."""

import json

import pytest

from shoal.bench.filtering import Outcome, conclude


def test_the_gap_and_its_interval_are_those_of_the_seeds() -> None:
    filtered = [Outcome(0.5, 100), Outcome(0.6, 100), Outcome(0.55, 100)]
    unfiltered = [Outcome(0.4, 300), Outcome(0.5, 350), Outcome(0.45, 250)]
    result = conclude(filtered, unfiltered)
    values = json.loads(result.to_json())["values"]
    assert values["reward_filtered"] == pytest.approx(0.55)
    assert values["reward_unfiltered"] == pytest.approx(0.45)
    assert values["reward_gap"] == pytest.approx(0.1)
    assert values["reward_gap_ci"] == pytest.approx(0.0, abs=1e-9)
    assert values["reward_filtered_ci"] == pytest.approx(4.303 * 0.05 / 3**0.5)
    assert result.ratios["samples_unfiltered_vs_filtered"] == 3.0
    assert result.met("reward_gap")
