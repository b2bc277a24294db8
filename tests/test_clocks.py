"""Clocks: answers of any length get the time that they take, and nobody gets it for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.clocks import HEADROOM, MAX_TIMES, MAX_WAIT_S, MIN_LEASE_S, NEWCOMER_TOKENS_PER_S, lease_s, newcomer_lease_s
from tests.support.coordinator_in_process import make_config

tokens = st.integers(1, 1 << 31)
speeds = st.none() | st.floats(1e-3, 1e9)


@given(tokens, st.floats(1e-3, 1e9))
def test_a_node_of_known_speed_has_time_for_answers_of_full_length(count: int, speed: float) -> None:
    bound = MAX_TIMES * newcomer_lease_s(count)
    assert lease_s(count, speed) >= min(HEADROOM * count / speed, bound)


@given(tokens, speeds, st.integers(1, 6))
def test_no_lease_is_shorter_than_the_least_or_longer_than_its_bound(
    count: int, speed: float | None, given: int
) -> None:
    assert MIN_LEASE_S <= lease_s(count, speed, given) <= MAX_TIMES * newcomer_lease_s(count)


@given(tokens, st.floats(0.2, 1.0))
def test_a_newcomer_that_is_slower_than_thought_finishes_a_draw_when_it_is_given_again(
    count: int, share: float
) -> None:
    needs_s = count / (share * NEWCOMER_TOKENS_PER_S)
    assert any(lease_s(count, None, given) >= needs_s for given in (1, 2, 3, 4))


def test_a_run_of_long_answers_waits_longer_than_one_of_short_ones() -> None:
    long = make_config(
        sampling={"group_size": 16, "max_new_tokens": 32768},
        workers={"groups_per_submission": 8, "lease_s": None},
        train={"token_budget": 40000},
    )
    short = make_config(workers={"lease_s": None})
    # 4.2 M tokens at 200 per second are 5.8 hours; INTELLECT-2's first file came after 24 minutes.
    assert long.new_lease_s == pytest.approx(8 * 16 * 32768 / 200)
    assert (long.patience_s, short.patience_s, short.new_lease_s) == (MAX_WAIT_S, 600.0, 240.0)


def test_clocks_that_are_set_are_kept() -> None:
    config = make_config(workers={"lease_s": 17.0}, wait_s=3.0)
    assert (config.new_lease_s, config.patience_s) == (17.0, 3.0)
