"""A worker's leases: no answer waits for another lease's, and versions change only where they may."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shoal.generate.engine import Completion, Engine, Request
from shoal.generate.flights import Flight
from shoal.generate.pipeline import FileTime, Pipeline, can_be_met, tools_can_meet
from shoal.protocol.spans import SpanLease, check_all_named, check_span_leases
from shoal.protocol.stores import Version
from tests.support.submissions import make_lease

OLD, NEW, NEWER = (Version(number, f"{number}a" * 32) for number in (3, 4, 5))


def flight(number: int = 0, answers: int = 4, longest: int = 100, every: int = 32, version: Version = OLD) -> Flight:
    lease = make_lease(submission=number, version=version.number, step=5)
    return Flight.begin(lease, version, [Request((7, 8), 1, n, longest) for n in range(answers)], every)


def pipeline(*flights: Flight, in_flight: bool = False, max_batch: int = 8) -> Pipeline[Flight]:
    return Pipeline(max_batch, 2, in_flight, flights=list(flights))


def piece(request: Request, tokens: int | None = None) -> Completion:
    """What an engine answers: as many tokens as were asked for, or fewer and an end."""
    count = request.max_new_tokens if tokens is None else tokens
    ids = [100 + request.position + n for n in range(count)]
    return Completion(0, ids, [-1.0] * count, "length" if tokens is None else "eos", b"p")


def grant(own: Flight, version: Version) -> None:
    first = own.unleased()
    assert first is not None
    own.later.append(SpanLease(first, version.number, version.root, beacon=first))


def test_an_answer_in_spans_is_asked_for_with_its_text_so_far_and_the_spans_own_noise() -> None:
    own = flight(answers=1)
    first = own.ask(0)
    assert (first.prompt, first.max_new_tokens, first.position, first.seed) == ((7, 8), 32, 0, 1)
    assert not own.due(OLD)
    assert own.unleased() is None
    assert not own.add(0, piece(first))
    assert own.unleased() == 32
    assert not own.due(OLD), "nothing is drawn before it is known what draws it"
    grant(own, OLD)
    second = own.ask(0)
    assert (second.prompt[2:], second.max_new_tokens, second.position) == (tuple(range(100, 132)), 32, 32)
    assert second.seed == own.later[0].seed(own.lease)
    own.add(0, piece(second))
    grant(own, OLD)
    own.add(0, piece(own.ask(0)))
    grant(own, OLD)
    last = own.ask(0)
    assert (last.position, last.max_new_tokens) == (96, 4)
    assert own.add(0, piece(last))
    (answer,) = own.completions()
    assert answer.tokens == list(range(100, 200))
    assert (answer.finish, len(answer.logprobs), answer.proof) == ("length", 100, b"pppp")


@pytest.mark.parametrize("seed", range(20))
def test_however_far_the_answers_have_come_each_span_is_drawn_by_its_version_in_all_of_them(seed: int) -> None:
    rng = Random(seed)
    own, held, loaded = flight(answers=6), pipeline(in_flight=True), OLD
    held.flights.append(own)
    newest = OLD
    under_way: dict[int, Request] = {}
    drawn: dict[tuple[int, int], Version] = {}
    while own.unfinished:
        newest = rng.choice([newest] * 9 + [NEW if newest == OLD else NEWER])
        if own.unleased() is not None:
            version = held.span_version(own, loaded, newest)
            grant(own, next(known for known in (OLD, NEW, NEWER) if known.number == version))
        loaded = held.to_load(loaded, newest, len(under_way)) or loaded
        for number in own.due(loaded):
            under_way[number] = own.ask(number)
            drawn[number, under_way[number].position] = loaded
        number = rng.choice(sorted(under_way))
        own.add(number, piece(under_way.pop(number), rng.randint(1, 31) if rng.random() < 0.2 else None))
    check_span_leases("file", own.later, own.lease, 32, 100)
    check_all_named("file", own.later, 32, max(len(answer.tokens) for answer in own.answers))
    versions = {0: OLD.number} | {span.first: span.version for span in own.later}
    assert all(version.number == versions[position] for (_, position), version in drawn.items())


def test_an_answer_that_is_behind_is_waited_for_before_the_versions_change() -> None:
    own = flight(answers=2)
    held = pipeline(own, in_flight=True)
    ahead, behind = own.ask(0), own.ask(1)
    own.add(0, piece(ahead))
    grant(own, NEW)
    assert own.due(OLD) == []
    assert held.to_load(OLD, NEW, under_way=1) is None
    own.add(1, piece(behind))
    assert held.to_load(OLD, NEW, under_way=0) == NEW
    assert own.due(NEW) == [0, 1]


def test_a_lease_that_still_needs_the_older_version_comes_first() -> None:
    one, other = flight(0, answers=1, version=NEW), flight(1, answers=1, version=OLD)
    held = pipeline(one, other, in_flight=True)
    assert held.to_load(NEWER, NEWER, under_way=0) == OLD
    assert held.to_load(OLD, NEWER, under_way=0) is None
    assert held.ask_with(OLD, NEW) is None, "one of them waits for its version"


def test_a_span_is_asked_for_with_the_newest_version_that_the_step_takes() -> None:
    own = flight()
    held = pipeline(own, in_flight=True)
    assert held.span_version(own, OLD, OLD) == 3
    assert held.span_version(own, OLD, NEWER) == 5
    assert held.span_version(own, NEW, Version(6, "6a" * 32)) == 4
    own.later.append(SpanLease(32, 5, NEWER.root, 1))
    assert held.span_version(own, NEW, NEW) == 5, "a version that was taken back leaves the spans as they are"


def test_without_in_flight_a_lease_keeps_its_version_to_the_end() -> None:
    own = flight(answers=1, every=100)
    held = pipeline(own)
    request = own.ask(0)
    held.notice(OLD, NEW)
    assert own.unleased() is None
    assert held.to_load(OLD, NEW, under_way=1) is None
    own.add(0, piece(request))
    assert held.take_finished() == [own]
    assert own.later == []


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
    assert held.ask_with(OLD, NEW) is None
    assert held.to_load(OLD, NEW, under_way=0) == NEW
    assert held.ask_with(NEW, NEW) == 4


@pytest.mark.parametrize("in_flight", [False, True])
def test_no_lease_is_asked_for_with_a_version_before_it_is_loaded(in_flight: bool) -> None:
    held = pipeline(in_flight=in_flight)
    for loaded in (None, OLD, NEWER):  # a newer one than the newest was taken back
        assert held.ask_with(loaded, NEW) is None
        assert held.to_load(loaded, NEW, under_way=0) == NEW
        assert held.to_load(loaded, NEW, under_way=0, is_asking=True) is None, "its lease would name the other one"
    assert held.ask_with(NEW, NEW) == 4
    assert held.to_load(NEW, NEW, under_way=0) is None


def test_where_answers_change_versions_the_next_lease_waits_until_they_have() -> None:
    own = flight(answers=1)
    held = pipeline(own, in_flight=True)
    request = own.ask(0)
    assert held.ask_with(OLD, NEW) is None
    own.add(0, piece(request))
    grant(own, NEW)
    assert held.to_load(OLD, NEW, under_way=0) == NEW
    assert held.ask_with(NEW, NEW) == 4


def test_a_version_that_is_too_old_for_any_step_gets_no_lease() -> None:
    held = pipeline(flight(answers=2))
    newest = Version(6, "6a" * 32)
    held.notice(OLD, newest)
    assert held.ask_with(OLD, newest) is None


def test_a_lease_of_another_version_waits_until_the_engine_is_free() -> None:
    running, waiting = flight(0, version=NEW, every=100), flight(1, version=OLD, every=100)
    held = pipeline(running, waiting)
    under_way = [running.ask(number) for number in running.due(NEW)]
    assert waiting.due(NEW) == []
    assert held.to_load(NEW, NEW, len(under_way)) is None
    assert held.ask_with(NEW, NEW) is None
    assert held.holds([make_lease(step=9, submission=2)]) == [(5, 0), (5, 1), (9, 2)]
    for number, request in enumerate(under_way):
        running.add(number, piece(request))
    assert held.take_finished() == [running]
    assert held.to_load(NEW, NEW, under_way=0) == OLD


def test_a_lease_that_cannot_be_done_in_time_is_not_asked_for() -> None:
    assert can_be_met(unfinished=10, answer_tokens=100, lease_answers=10, tokens_per_s=100, lease_s=240)
    assert not can_be_met(unfinished=200, answer_tokens=100, lease_answers=10, tokens_per_s=100, lease_s=240)
    assert can_be_met(unfinished=200, answer_tokens=0, lease_answers=10, tokens_per_s=0, lease_s=240)
    assert can_be_met(unfinished=0, answer_tokens=100, lease_answers=10, tokens_per_s=100, lease_s=-3)


class CountingEngine(Engine):
    """Gives each of the first `max_batch` running requests one token per step, as a model's forward pass would."""

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self._left: dict[int, tuple[Request, int]] = {}

    @property
    def running(self) -> int:
        return len(self._left)

    def load(self, folder: Path, origin: str) -> None:
        raise NotImplementedError

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        self._left[key] = request, request.max_new_tokens

    def abort(self) -> None:
        self._left.clear()

    def step(self) -> list[Completion]:
        done = []
        for key in list(self._left)[: self.max_batch]:
            request, left = self._left[key]
            self._left[key] = request, left - 1
            if left == 1:
                del self._left[key]
                done.append(replace(piece(request), key=key))
        return done


def tokens_per_step(times: int) -> float:
    """Of a pipeline whose leases each have one answer so many times as long as the others, once it is full."""
    engine, held, pieces = CountingEngine(64), pipeline(max_batch=64), dict[int, tuple[Flight, int]]()
    tokens = steps = done = begun = 0
    while done < 60:
        while held.ask_with(OLD, OLD) is not None:
            own = flight(begun, answers=32, longest=32, every=1000)
            own.answers[0].request = replace(own.answers[0].request, max_new_tokens=32 * times)
            held.flights.append(own)
            begun += 1
        for own in held.flights:
            for number in own.due(OLD):
                engine.submit(key := len(pieces), own.ask(number))
                pieces[key] = own, number
        for completion in engine.step():
            own, number = pieces[completion.key]
            own.add(number, completion)
            tokens += len(completion.tokens) * (done >= 30)
        done += len(held.take_finished())
        steps += done >= 30
    return tokens / steps


def test_one_long_answer_per_lease_leaves_no_place_of_the_engine_empty() -> None:
    assert tokens_per_step(10) >= 0.85 * tokens_per_step(1)


def test_where_answers_wait_for_tools_whole_files_say_what_is_in_time() -> None:
    """240 s are halved: a file that took 40 s may take three times as long, and with three times the answers it may."""
    last = FileTime(seconds=40.0, open_answers=16)
    assert tools_can_meet(unfinished=32, lease_answers=16, last=last, lease_s=240)
    assert not tools_can_meet(unfinished=33, lease_answers=16, last=last, lease_s=240)
    assert tools_can_meet(unfinished=1, lease_answers=4, last=FileTime(120.0, 16), lease_s=240)
    assert not tools_can_meet(unfinished=1, lease_answers=4, last=FileTime(121.0, 16), lease_s=240), (
        "fewer are not faster"
    )


def test_until_a_first_file_has_shown_how_long_tools_take_there_is_one_lease_at_a_time() -> None:
    assert tools_can_meet(unfinished=0, lease_answers=16, last=None, lease_s=0)
    assert not tools_can_meet(unfinished=1, lease_answers=16, last=None, lease_s=240)
    assert tools_can_meet(unfinished=0, lease_answers=16, last=FileTime(900.0, 16), lease_s=240), "or it never ends"
