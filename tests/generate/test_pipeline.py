"""A worker's leases: no answer waits for another lease's, versions change only where they may, and late work is let
go."""

from random import Random

import pytest

from shoal.generate.engine import Completion, Request
from shoal.generate.flights import Flight
from shoal.generate.pipeline import Pipeline, can_be_met
from shoal.protocol.spans import Swap, check_swaps, check_used
from shoal.protocol.stores import Version
from tests.support.submissions import make_lease

OLD, NEW, NEWER = (Version(number, f"{number}a" * 32) for number in (3, 4, 5))


def flight(number: int = 0, answers: int = 4, longest: int = 100, every: int = 32, version: Version = OLD) -> Flight:
    lease = make_lease(submission=number, version=version.number, step=5)
    return Flight.begin(lease, version, [Request((7, 8), 1, n, longest) for n in range(answers)], every)


def pipeline(*flights: Flight, in_flight: bool = False, max_batch: int = 8) -> Pipeline:
    return Pipeline(max_batch, 2, in_flight, flights=list(flights))


def piece(request: Request, tokens: int | None = None) -> Completion:
    """What an engine answers: as many tokens as were asked for, or fewer and an end."""
    count = request.max_new_tokens if tokens is None else tokens
    ids = [100 + request.position + n for n in range(count)]
    return Completion(0, ids, [-1.0] * count, "length" if tokens is None else "eos", b"p")


def test_an_answer_in_pieces_is_asked_for_with_its_noise_and_its_text_so_far() -> None:
    own = flight(answers=1)
    first = own.ask(0)
    assert (first.prompt, first.max_new_tokens, first.position) == ((7, 8), 32, 0)
    assert not own.due()
    assert not own.add(0, piece(first))
    second = own.ask(0)
    assert (second.prompt[2:], second.max_new_tokens, second.position) == (tuple(range(100, 132)), 32, 32)
    own.add(0, piece(second))
    own.add(0, piece(own.ask(0)))
    last = own.ask(0)
    assert (last.position, last.max_new_tokens) == (96, 4)
    assert own.add(0, piece(last))
    (answer,) = own.completions()
    assert answer.tokens == list(range(100, 200))
    assert (answer.finish, len(answer.logprobs), answer.proof) == ("length", 100, b"pppp")


@pytest.mark.parametrize("seed", range(20))
def test_however_far_the_answers_have_come_all_change_at_one_place_that_is_allowed(seed: int) -> None:
    rng = Random(seed)
    own = flight(answers=6)
    versions = iter((NEW, NEWER))
    under_way = {number: own.ask(number) for number in own.due()}
    while own.unfinished:
        if rng.random() < 0.1:
            own.stop()
        if own.is_stopped and own.unfinished and (version := next(versions, None)):
            assert len({len(a.tokens) for a in own.answers if a.finish is None}) == 1
            own.go_on(version)
        elif own.is_stopped:
            own.place = None  # there is no newer version: it goes on with the one it has
        under_way |= {number: own.ask(number) for number in own.due()}
        number = rng.choice(sorted(under_way))
        request = under_way.pop(number)
        own.add(number, piece(request, rng.randint(1, 31) if rng.random() < 0.2 else None))
    check_swaps("file", own.swaps, own.lease, 32, 100)
    if own.swaps:
        longest = max(len(answer.tokens) for answer in own.answers)
        assert longest > own.swaps[-1].first
        check_used("file", own.swaps, longest)


def test_an_answer_that_waits_for_its_turn_is_waited_for_before_the_versions_change() -> None:
    own = flight(answers=3)
    ahead, behind, _ = (own.ask(number) for number in range(3))
    own.add(0, piece(ahead))
    own.ask(0)
    own.stop()  # the first is on its way to 64, so the others go there as well
    own.add(1, piece(behind))
    assert own.due() == [1]
    assert not own.is_stopped
    assert own.place == 64


def test_a_newer_version_waits_until_all_leases_have_stopped_and_every_one_goes_on_with_it() -> None:
    one, other = flight(0, answers=1), flight(1, answers=1)
    held = pipeline(one, other, in_flight=True)
    first, second = one.ask(0), other.ask(0)
    held.notice(OLD, NEW)
    assert held.to_load(OLD, NEW) is None
    one.add(0, piece(first))
    assert not one.due()
    assert held.to_load(OLD, NEW) is None
    assert held.ask_with(OLD, NEW) is None
    other.add(0, piece(second))
    assert held.to_load(OLD, NEW) == NEW
    for own in held.flights:
        own.go_on(NEW)
        assert own.swaps == [Swap(32, 4, NEW.root)]
        assert own.due() == [0]


def test_answers_that_stopped_for_a_version_go_on_without_it_when_it_is_taken_back() -> None:
    own = flight(answers=1)
    held = pipeline(own, in_flight=True)
    request = own.ask(0)
    held.notice(OLD, NEW)
    own.add(0, piece(request))
    assert own.due() == []
    held.notice(OLD, OLD)
    assert own.due() == [0]
    assert own.swaps == []


def test_without_in_flight_a_lease_keeps_its_version_to_the_end() -> None:
    own = flight(answers=1, every=100)
    held = pipeline(own)
    request = own.ask(0)
    held.notice(OLD, NEW)
    assert own.place is None
    assert held.to_load(OLD, NEW) is None
    own.add(0, piece(request))
    assert held.take_finished() == [own]
    assert own.swaps == []


def test_free_places_are_filled_while_a_long_answer_ends_and_not_for_ever() -> None:
    long, short = flight(0, answers=5), flight(1, answers=5)
    held = pipeline(long)
    assert held.ask_with(OLD, OLD) == 3
    held.notice(OLD, NEW)
    assert held.ask_with(OLD, NEW) == 3, "places are free, and version 3 still serves"
    held.flights.append(short)
    assert held.ask_with(OLD, NEW) is None, "all places are taken"
    held.flights.remove(long)
    held.notice(OLD, NEW)
    assert held.ask_with(OLD, NEW) is None, "what was there when version 4 came has ended: now it is version 4's turn"
    held.flights.remove(short)
    assert held.ask_with(OLD, NEW) == 4


def test_a_version_that_is_too_old_for_any_step_gets_no_lease() -> None:
    held = pipeline(flight(answers=2))
    newest = Version(6, "6a" * 32)
    held.notice(OLD, newest)
    assert held.ask_with(OLD, newest) is None


def test_a_lease_of_another_version_waits_until_the_engine_is_free() -> None:
    running, waiting = flight(0, version=NEW), flight(1, version=OLD)
    held = pipeline(running)
    held.waiting.append(waiting)
    assert held.begin(NEW) == []
    assert held.to_load(NEW, NEW) is None
    assert held.ask_with(NEW, NEW) is None
    assert held.holds([make_lease(step=9, submission=2)]) == [(5, 0), (5, 1), (9, 2)]
    held.flights.clear()
    assert held.to_load(NEW, NEW) == OLD
    assert held.begin(OLD) == [waiting]


def test_a_lease_that_cannot_be_done_in_time_is_not_asked_for() -> None:
    assert can_be_met(unfinished=10, answer_tokens=100, lease_answers=10, tokens_per_s=100, lease_s=240)
    assert not can_be_met(unfinished=200, answer_tokens=100, lease_answers=10, tokens_per_s=100, lease_s=240)
    assert can_be_met(unfinished=200, answer_tokens=0, lease_answers=10, tokens_per_s=0, lease_s=240)
