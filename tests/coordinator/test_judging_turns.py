"""Whose turn it is to judge a file: each file once, evenly, and none is lost with its validator."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.judging_turns import FIRST_S, LATE, MIN_S, Pace, has_turn, ranking

NAMES = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=8)
PLACES = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
SECRETS = st.binary(min_size=32, max_size=32)
FILES = [(step, submission) for step in range(40) for submission in range(50)]


@given(SECRETS, PLACES, NAMES, st.integers(1, 8))
def test_every_file_has_as_many_judges_as_seats(secret: bytes, place: tuple[int, int], names: set[str], n: int) -> None:
    ranked = ranking(secret, place, names)
    judges = [who for who in names if has_turn(who, ranked, n, lambda _: False)]
    assert sorted(judges) == sorted(ranked[:n])


@given(SECRETS, PLACES, NAMES, st.integers(1, 3), st.data())
def test_no_file_waits_for_late_validators(
    secret: bytes, place: tuple[int, int], names: set[str], seats: int, data: st.DataObject
) -> None:
    late = data.draw(st.sets(st.sampled_from(sorted(names))))
    ranked = ranking(secret, place, names)
    judges = [who for who in names - late if has_turn(who, ranked, seats, late.__contains__)]
    assert len(judges) == min(seats, len(names - late))


@given(SECRETS, PLACES, NAMES)
def test_a_validator_that_leaves_moves_its_own_files_alone(
    secret: bytes, place: tuple[int, int], names: set[str]
) -> None:
    first, *rest = ranking(secret, place, names)
    for gone in names:
        assert ranking(secret, place, names - {gone})[:1] == (rest[:1] if gone == first else [first])


def test_validators_share_files_evenly() -> None:
    for names in ({"a", "b"}, {"a", "b", "c", "d", "e"}):
        shares = Counter(ranking(b"s" * 32, place, names)[0] for place in FILES)
        fair = len(FILES) / len(names)
        assert all(abs(share - fair) < 5 * fair**0.5 for share in shares.values())


def test_without_the_secret_one_file_says_nothing_of_another() -> None:
    """Knowing who judged all files before, a guess of who is next is right half of the time."""
    firsts = [ranking(b"secret" * 6, place, {"a", "b"})[0] for place in FILES]
    alike = sum(x == y for x, y in itertools.pairwise(firsts))
    assert abs(alike - len(FILES) / 2) < 5 * (len(FILES) / 4) ** 0.5
    other = [ranking(b"another" * 5, place, {"a", "b"})[0] for place in FILES]
    same = sum(x == y for x, y in zip(firsts, other, strict=True))
    assert abs(same - len(FILES) / 2) < 5 * (len(FILES) / 4) ** 0.5


def test_a_long_line_makes_nobody_late() -> None:
    pace = Pace(began=0.0, longest_s=600.0)
    for n in range(1, 101):
        assert not pace.is_late("a", received=0.0, now=2.0 * n)
        pace.judged("a", received=0.0, now=2.0 * n)
    assert pace.late_s == MIN_S  # each file took two seconds


def test_a_validator_is_late_by_what_files_take() -> None:
    pace = Pace(began=0.0, longest_s=600.0)
    assert not pace.is_late("a", received=0.0, now=FIRST_S)
    assert pace.is_late("a", received=0.0, now=FIRST_S + 1)
    pace.judged("b", received=0.0, now=30.0)
    assert pace.late_s == LATE * 30
    assert pace.is_late("a", received=0.0, now=LATE * 30 + 1)
    assert not pace.is_late("b", received=0.0, now=LATE * 30 + 1)


def test_a_file_that_is_passed_over_is_judged_by_another_in_the_end() -> None:
    pace = Pace(began=0.0, longest_s=600.0)
    for n in range(700):
        pace.judged("a", received=float(n), now=float(n))
    assert not pace.is_late("a", received=599.0, now=700.0)
    assert pace.is_late("a", received=50.0, now=700.0)
