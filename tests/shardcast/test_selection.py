"""Choice of a source: a pure function of what is believed."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.shardcast.fetch.selection import Belief, choose, weights

BELIEFS = st.builds(Belief, st.none() | st.floats(0, 1e12, allow_nan=False), st.floats(0, 1, allow_nan=False))


def test_sources_are_drawn_in_proportion_to_success_and_speed() -> None:
    beliefs = [Belief(3e6, 1.0), Belief(2e6, 0.5)]
    rng = Random(0)
    drawn = sum(choose(beliefs, rng) for _ in range(8000))
    assert abs(drawn / 8000 - 0.25) < 0.02


@given(BELIEFS)
def test_a_failure_never_raises_anything(belief: Belief) -> None:
    after = belief.failed()
    assert after.success <= belief.success
    assert (after.bytes_per_s or 0) <= (belief.bytes_per_s or 0)


@given(BELIEFS, st.floats(0, 1e12))
def test_a_delivery_moves_the_estimates_towards_what_was_seen(belief: Belief, speed: float) -> None:
    after = belief.delivered(speed)
    assert belief.success <= after.success <= 1
    assert after.bytes_per_s is not None
    if belief.bytes_per_s is not None:
        low, high = sorted((belief.bytes_per_s, speed))
        assert low * 0.999 <= after.bytes_per_s <= high * 1.001


def test_a_source_that_failed_for_long_heals_by_a_hundredth_an_update() -> None:
    belief = Belief(1e6, 1.0)
    for _ in range(50):
        belief = belief.failed()
    assert belief.success < 1e-6
    for _ in range(100):
        belief = belief.healed()
    assert belief.success > 0.999


def test_a_source_that_was_never_measured_is_tried_as_if_it_were_the_fastest() -> None:
    assert weights([Belief(), Belief(5e6), Belief(1e6)]) == [5e6, 5e6, 1e6]


@given(st.lists(BELIEFS, min_size=1, max_size=5), st.integers(0, 1000))
def test_somebody_is_always_chosen(beliefs: list[Belief], seed: int) -> None:
    assert 0 <= choose(beliefs, Random(seed)) < len(beliefs)
