"""Pacing: workers are never asked for what would be too old, nor for more than a step may see."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.pacing import RATE_FLOOR, Grant, StepCount, next_grant, signal_rate


@st.composite
def counted(draw: st.DrawFn) -> StepCount:
    seen = draw(st.integers(0, 200))
    return StepCount(seen, draw(st.integers(0, seen)), draw(st.integers(0, 200)))


counts_of_steps = st.dictionaries(st.integers(0, 30), counted(), max_size=12)


def grant(
    counts: dict[int, StepCount],
    version: int = 0,
    async_level: int = 2,
    steps: int = 100,
    needed: int = 32,
    max_seen: int = 512,
    submission_groups: int = 8,
    online_filter: bool = True,
) -> Grant | None:
    return next_grant(
        counts,
        version=version,
        async_level=async_level,
        steps=steps,
        needed=needed,
        max_seen=max_seen,
        submission_groups=submission_groups,
        online_filter=online_filter,
    )


@given(
    counts=counts_of_steps,
    version=st.integers(0, 30),
    async_level=st.integers(0, 8),
    steps=st.integers(1, 30),
    needed=st.integers(1, 64),
    max_seen=st.integers(1, 256),
    submission_groups=st.integers(1, 64),
)
def test_a_grant_is_never_too_old_too_late_or_too_large(
    counts: dict[int, StepCount],
    version: int,
    async_level: int,
    steps: int,
    needed: int,
    max_seen: int,
    submission_groups: int,
) -> None:
    given_ = grant(counts, version, async_level, steps, needed, max_seen, submission_groups)
    if given_ is None:
        return
    count = counts.get(given_.step, StepCount())
    assert version <= given_.step <= version + async_level
    assert given_.step < steps
    assert 1 <= given_.groups <= submission_groups
    assert count.seen + count.leased + given_.groups <= max_seen
    assert count.signal < needed


@given(
    counts=counts_of_steps,
    version=st.integers(0, 20),
    async_level=st.integers(0, 4),
    needed=st.integers(1, 64),
    groups=st.integers(1, 16),
)
def test_work_stops_exactly_when_every_step_in_reach_is_provided_for(
    counts: dict[int, StepCount], version: int, async_level: int, needed: int, groups: int
) -> None:
    """Handing out leases until None comes: it comes, and then no step in reach is still short."""
    counts = dict(counts)
    for _ in range(10_000):
        next_ = grant(counts, version, async_level, 100, needed, 256, groups)
        if next_ is None:
            break
        old = counts.get(next_.step, StepCount())
        counts[next_.step] = StepCount(old.seen, old.signal, old.leased + next_.groups)
    else:
        raise AssertionError("leases were handed out without end")
    rate = signal_rate(counts)
    for step in range(version, version + async_level + 1):
        count = counts.get(step, StepCount())
        full = count.seen + count.leased >= 256
        assert full or count.signal + count.leased * rate >= needed


def test_the_smallest_step_that_is_short_comes_first() -> None:
    full = StepCount(seen=32, signal=32)
    assert grant({5: full, 6: StepCount(30, 30), 7: StepCount()}, version=5) == Grant(6, 4)
    assert grant({5: full, 6: full, 7: StepCount()}, version=5) == Grant(7, 8)


def test_with_every_step_full_nothing_is_granted() -> None:
    full = StepCount(seen=32, signal=32)
    assert grant({5: full, 6: full, 7: full}, version=5) is None


def test_at_async_level_0_nothing_is_granted_ahead_of_the_newest_version() -> None:
    assert grant({5: StepCount(32, 32)}, version=5, async_level=0) is None


def test_after_the_last_step_nothing_is_granted() -> None:
    assert grant({}, version=10, steps=10) is None
    assert grant({9: StepCount(32, 32)}, version=9, steps=10) is None


def test_leases_that_are_out_count_as_rollouts_that_will_come() -> None:
    assert grant({0: StepCount(0, 0, leased=32)}, async_level=0) is None
    assert grant({0: StepCount(0, 0, leased=24)}, async_level=0) == Grant(0, 8)


def test_when_half_of_the_groups_teach_nothing_twice_as_many_are_asked_for() -> None:
    # 31 of 63 had signal: a rate of 32 / 64. Of the 32 groups on leases 16 will count; 31 + 16 are more than 40.
    assert grant({0: StepCount(63, 31, leased=32)}, needed=40, async_level=0) is None
    assert grant({0: StepCount(63, 31, leased=16)}, needed=40, async_level=0) == Grant(0, 4)


def test_no_more_is_asked_for_than_a_step_may_see() -> None:
    hopeless = StepCount(seen=500, signal=0, leased=8)
    assert grant({0: hopeless}, async_level=0) == Grant(0, 4)
    assert grant({0: StepCount(seen=504, signal=0, leased=8)}, async_level=0) is None


def test_the_tail_of_a_step_is_no_smaller_than_half_a_submission() -> None:
    assert grant({0: StepCount(31, 31)}, async_level=0) == Grant(0, 4)


def test_without_the_online_filter_every_group_fills_the_step() -> None:
    poor = {0: StepCount(seen=24, signal=1)}
    assert grant(poor, async_level=0, online_filter=False) == Grant(0, 8)
    assert grant({0: StepCount(seen=24, signal=0, leased=8)}, async_level=0, online_filter=False) is None
    assert grant({0: StepCount(seen=32, signal=0)}, async_level=0, online_filter=False) is None
    assert grant({0: StepCount(seen=32, signal=0)}, async_level=0) == Grant(0, 8)


@given(counts_of_steps)
def test_the_expected_share_of_signal_is_a_share_and_never_hopeless(counts: dict[int, StepCount]) -> None:
    assert RATE_FLOOR <= signal_rate(counts) <= 1.0


def test_before_anything_arrived_every_group_is_hoped_for() -> None:
    assert signal_rate({}) == 1.0
    assert signal_rate({0: StepCount(seen=3, signal=1)}) == 0.5
