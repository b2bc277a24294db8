"""Whose turn it is to judge a file: each file once, evenly, and none is lost with its validator."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.judging_turns import (
    FIRST_S,
    LATE,
    MIN_S,
    PROVEN_PER_NEWCOMER,
    Pace,
    Place,
    Turns,
    mixed,
    ranking,
)

NAMES = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=8)
PLACES = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
SECRETS = st.binary(min_size=32, max_size=32)
FILES = [(step, submission) for step in range(40) for submission in range(50)]
LONGEST_S = 600.0


def turns(seats: int = 1, steals: bool = True) -> Turns:
    return Turns(b"s" * 32, Pace(LONGEST_S), seats, steals)


@given(SECRETS, PLACES, NAMES)
def test_a_validator_that_leaves_moves_its_own_files_alone(secret: bytes, place: Place, names: set[str]) -> None:
    first, *rest = ranking(secret, place, names)
    for gone in names:
        assert ranking(secret, place, names - {gone})[:1] == (rest[:1] if gone == first else [first])


@given(SECRETS, PLACES, st.lists(NAMES, min_size=1, max_size=5))
def test_what_is_remembered_of_a_ranking_is_the_ranking_whoever_is_there(
    secret: bytes, place: Place, there: list[set[str]]
) -> None:
    remembered = Turns(secret, Pace(LONGEST_S), 1, steals=True)
    for names in there:
        assert remembered.ranked(place, names) == ranking(secret, place, names)
        assert remembered.ranked(place, names, 1) == ranking(secret, place, names)[:1]


@given(st.lists(st.integers(0, 99), max_size=30), st.lists(st.integers(100, 199), max_size=30))
def test_of_eight_files_of_a_list_one_is_a_newcomers_while_there_are_both(proven: list[int], others: list[int]) -> None:
    found = mixed(proven, others)
    assert [file for file in found if file < 100] == proven
    assert [file for file in found if file >= 100] == others
    both = min(len(proven) // PROVEN_PER_NEWCOMER, len(others))
    assert [at for at, file in enumerate(found) if file >= 100][:both] == [8 * n + 7 for n in range(both)]


def test_files_are_ranked_evenly() -> None:
    for names in ({"a", "b"}, {"a", "b", "c", "d", "e"}):
        shares = Counter(ranking(b"s" * 32, place, names)[0] for place in FILES)
        fair = len(FILES) / len(names)
        assert all(abs(share - fair) < 5 * fair**0.5 for share in shares.values())


def test_without_the_secret_one_file_says_nothing_of_another() -> None:
    """Knowing who judged all files before, a guess of who is next is right half of the time."""
    firsts = [ranking(b"secret" * 6, place, {"a", "b"})[0] for place in FILES]
    other = [ranking(b"another" * 5, place, {"a", "b"})[0] for place in FILES]
    for guess in (firsts[1:], other[:-1]):
        right = sum(x == y for x, y in zip(firsts[:-1], guess, strict=True))
        assert abs(right - len(FILES) / 2) < 5 * (len(FILES) / 4) ** 0.5


@dataclass
class Simulated:
    """Validators that take some seconds per file, beside a coordinator's turns, in simulated time."""

    seconds: dict[str, float]
    turns: Turns = field(default_factory=turns)
    waiting: list[Place] = field(default_factory=list)
    judged: list[tuple[str, Place]] = field(default_factory=list)
    busy: dict[str, tuple[float, Place]] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)

    def run(self, until: float, start: float = 0.0, hand: int = 1) -> float:
        """Lets them work in steps of a tenth of a second; when there was nothing left to judge."""
        now = start
        while now < until and self.waiting:
            for who in sorted(self.there):
                if who in self.busy and self.busy[who][0] <= now:
                    _, place = self.busy.pop(who)
                    self.judged.append((who, place))
                    self.turns.judged(who, place, 0.0, now)
                    if place in self.waiting:
                        self.waiting.remove(place)
                if who not in self.busy and (dealt := self.turns.deal(who, self.waiting, self.there, hand, now)):
                    self.busy[who] = (now + self.seconds[who], dealt[0])
            now += 0.1
        return now


@pytest.mark.parametrize("hand", [1, 3])
@pytest.mark.parametrize("count", [2, 5])
def test_n_validators_judge_n_times_as_much_and_each_file_once(count: int, hand: int) -> None:
    names = [f"v{n}" for n in range(count)]
    several = Simulated(dict.fromkeys(names, 2.0), waiting=FILES[:100], there=set(names))
    one = Simulated({"v0": 2.0}, waiting=FILES[:100], there={"v0"})
    assert one.run(1e4) / several.run(1e4, hand=hand) >= 0.9 * count
    assert sorted(place for _, place in several.judged) == sorted(FILES[:100])


def test_a_slow_validator_holds_nobody_up() -> None:
    world = Simulated({"slow": 10.0, "fast": 1.0}, waiting=FILES[:60], there={"slow", "fast"})
    assert world.run(1e4) <= 60 / 1.1 + 10.5
    assert len(world.judged) == 60


def test_files_of_a_validator_that_died_are_judged_by_the_others() -> None:
    world = Simulated({"a": 2.0, "b": 2.0}, waiting=FILES[:40], there={"a", "b"})
    now = world.run(20.0)
    world.there = {"b"}
    world.run(1e4, start=now)
    assert not world.waiting
    assert sorted(place for _, place in world.judged) == sorted(FILES[:40])


def test_files_of_a_validator_that_hangs_are_taken_over_after_a_deadline() -> None:
    """It still sends heartbeats, and gives no verdicts."""
    world = Simulated({"a": 1e9, "b": 2.0}, waiting=FILES[:40], there={"a", "b"})
    assert world.run(1e4) < 80 + FIRST_S
    assert Counter(who for who, _ in world.judged) == {"b": 40}
    assert len({place for _, place in world.judged}) == 40


def test_a_validator_that_never_asks_is_dealt_nothing() -> None:
    """Its model is being loaded, for as long as that takes."""
    idle = turns()
    assert idle.deal("a", FILES[:9], {"a", "b"}, 9, now=0.0) == FILES[:9]


def test_where_validators_do_not_trust_each_other_no_one_gets_files_of_another_that_is_on_time() -> None:
    strict, names, got = turns(seats=2, steals=False), ["a", "b", "c"], {}
    for who in names * 2:
        got[who] = strict.deal(who, FILES[:60], set(names), 99, now=0.0)
    # The first to ask was alone then, and the second had one beside it.
    assert all(set(ranking(strict.secret, place, names)[:2]) >= {"c"} for place in got["c"])
    counts = Counter(place for dealt in got.values() for place in dealt)
    assert set(counts) == set(FILES[:60])
    assert max(counts.values()) <= 2


def test_a_vote_is_not_asked_for_twice() -> None:
    two = turns(seats=2, steals=False)
    for who in ("a", "b"):
        (place,) = two.deal(who, FILES[:1], {"a", "b", "c"}, 9, now=0.0)
        two.judged(who, place, 0.0, now=1.0)
    assert two.deal("c", FILES[:1], {"a", "b", "c"}, 9, now=1e6) == []


def test_a_validator_is_late_by_what_files_take() -> None:
    pace = Pace(LONGEST_S)
    assert not pace.is_late("a", since=0.0, now=FIRST_S)
    assert pace.is_late("a", since=0.0, now=FIRST_S + 1)
    pace.judged("b", since=0.0, now=30.0)
    assert pace.late_s == LATE * 30
    assert pace.is_late("a", since=0.0, now=LATE * 30 + 1)
    assert not pace.is_late("b", since=0.0, now=LATE * 30 + 1)
    for n in range(100):
        pace.judged("b", since=0.0, now=30.0 + n)
    assert pace.late_s == MIN_S


def test_a_file_that_is_passed_over_is_judged_by_another_in_the_end() -> None:
    """A validator that judges all but one file is on time, until that one has been in its hand for too long."""
    both, rng = turns(), random.Random(0)
    names = {"a", "b"}
    for who in names:
        both.deal(who, [], names, 1, now=0.0)
    place = next(place for place in FILES if ranking(both.secret, place, names)[0] == "a")
    assert both.deal("a", [place], names, 1, now=0.0) == [place]
    for n in range(int(LONGEST_S)):
        both.judged("a", (99, rng.randrange(10**6)), n, now=float(n))
        assert both.deal("b", [place], names, 1, now=float(n)) == []
        both.deal("a", [place], names, 1, now=float(n))
    assert both.deal("b", [place], names, 1, now=LONGEST_S + 1) == [place]
