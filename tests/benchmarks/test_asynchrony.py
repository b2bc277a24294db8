"""What the async benchmark makes of the metrics of its runs."""

import math

import pytest

from benchmarks.training.asynchrony import Outcome, conclude, outcome


def ended(wall_s: float, reward: float) -> Outcome:
    return Outcome(wall_s, reward, samples=100, generation_s=1.0, training_s=1.0, staleness=0.0)


def test_the_clock_runs_from_the_first_token_to_the_last_step_and_the_reward_is_that_of_the_end() -> None:
    # The trainer is up at 90 and waits; the worker generates from 100 to 102.
    submissions = [{"time": 102.0 + i, "tokens": 20, "tokens_per_s": 10.0} for i in range(10)]
    steps = [
        {"time": 104.0 + 3 * i, "step_s": 14.0, "reward": i / 10, "samples": 8, "train_s": 1.5, "staleness_mean": 1.0}
        for i in range(10)
    ]
    found = outcome(steps, submissions)
    assert found.wall_s == pytest.approx(131 - 100)
    assert found.reward == pytest.approx((0.8 + 0.9) / 2)
    assert found.samples == 80
    assert found.generation_s == pytest.approx(2.0)
    assert found.training_s == 1.5


def test_noise_is_how_far_two_means_of_three_seeds_differ_by_chance() -> None:
    level0 = [ended(10, reward) for reward in (0.4, 0.5, 0.6)]
    level2 = [ended(6, reward) for reward in (0.5, 0.6, 0.7)]
    found = conclude(level0, level2, ended(9, 0.5))
    assert found.ratios["wall_level2_vs_level0"] == pytest.approx(0.6)
    assert found.values["reward_difference"] == pytest.approx(0.1)
    # Spread 0.1 at both levels: t(97.5 %, 4) x 0.1 x sqrt(1/3 + 1/3).
    assert found.values["reward_noise"] == pytest.approx(2.776445 * 0.1 * math.sqrt(2 / 3))
    assert found.met("reward_difference")


def test_a_difference_beyond_the_noise_is_not_met() -> None:
    level0 = [ended(10, reward) for reward in (0.60, 0.61, 0.62)]
    level2 = [ended(8, reward) for reward in (0.50, 0.51, 0.52)]
    found = conclude(level0, level2, ended(9, 0.6))
    assert not found.met("reward_difference")
    assert not found.met("wall_level2_vs_level0")
