"""Intervals over seeds, and verdicts that follow from them."""

import math
from random import Random

import pytest

from shoal.studies.claims import Claim, overall
from shoal.studies.intervals import Interval, mean_of, paired, shared_confidence, student_t


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert student_t(freedom, 0.95) == pytest.approx(t, rel=1e-5)


def test_an_interval_of_three_seeds_holds_the_true_mean_in_95_of_100_studies() -> None:
    rng = Random(0)
    found = [mean_of([rng.gauss(0.3, 0.1) for _ in range(3)]) for _ in range(2000)]
    assert 0.93 < sum(one.low <= 0.3 <= one.high for one in found) / 2000 < 0.97


def test_seeds_are_compared_pairwise_so_that_what_they_share_cancels() -> None:
    found = paired([0.1, 0.5, 0.9], [0.2, 0.6, 1.0])
    assert found.mean == pytest.approx(0.1)
    assert found.high - found.low < 1e-9


def test_a_single_seed_decides_nothing() -> None:
    assert Claim("x", "y", mean_of([5.0]), lower=0.0).outcome == "undecided"


@pytest.mark.parametrize(("confidence", "seeds"), [(0.95, 6), (0.975, 7), (shared_confidence(4), 8)])
def test_a_few_runs_that_are_all_equal_decide_nothing_though_their_interval_has_no_width(
    confidence: float, seeds: int
) -> None:
    """Two runs without a sign before their collapse do not show, with 95 % confidence, that there never is one."""
    for few, many in ((2, seeds), (seeds - 1, seeds + 5)):
        assert Claim("x", "y", mean_of([0.0] * few, confidence), lower=5.0).outcome == "undecided"
        assert Claim("x", "y", mean_of([0.0] * many, confidence), lower=5.0).outcome == "did not hold"
        assert Claim("x", "y", mean_of([9.0] * few, confidence), lower=5.0).outcome == "undecided"
        assert Claim("x", "y", mean_of([9.0] * many, confidence), lower=5.0).outcome == "held"


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        mean_of([0.5, math.nan])


def test_several_intervals_hold_together_only_if_each_is_wider() -> None:
    assert shared_confidence(1) == pytest.approx(0.95)
    assert student_t(4, shared_confidence(3)) > student_t(4, 0.95)


def claim(low: float, high: float, *, is_ours: bool = False) -> Claim:
    return Claim("it", "value", Interval((low + high) / 2, low, high, 3), -0.05, 0.05, is_ours)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.04, 0.04, "held"),
        (0.06, 0.2, "did not hold"),
        (-0.3, -0.06, "did not hold"),
        (-0.01, 0.06, "undecided"),
        (-0.2, 0.2, "undecided"),
        (0.05, 0.05, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval_alone(low: float, high: float, outcome: str) -> None:
    found = claim(low, high)
    assert found.outcome == outcome
    assert outcome in found.sentence


def test_all_of_the_papers_claims_must_hold_and_ours_count_for_nothing_there() -> None:
    held, broken, open_ = claim(-0.01, 0.01), claim(0.1, 0.2), claim(-1, 1)
    assert overall([held, held]) == "held"
    assert overall([held, open_]) == "undecided"
    assert overall([held, open_, broken]) == "did not hold"
    assert overall([held, claim(0.1, 0.2, is_ours=True)]) == "held"
    assert overall([claim(-0.01, 0.01, is_ours=True)]) == "held"  # where the paper makes none
