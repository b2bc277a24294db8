"""Time in a simulation: events in order, shared cores, links, and an engine whose answers end one by one."""

from collections.abc import Callable
from functools import partial
from math import inf

import pytest

from shoal.simulate.book import LeaseRow, NodeRow
from shoal.simulate.engine import Engine, Flight
from shoal.simulate.events import Events
from shoal.simulate.link import Link
from shoal.simulate.processor import Processor


def flight(*lengths: int, number: int = 0) -> Flight:
    return Flight(LeaseRow(NodeRow(0), 0, number, 0, 1, 0.0, 1e9), list(lengths))


def _note(done: dict[str, float], name: str, events: Events) -> None:
    done[name] = events.now


def times(events: Events, names: str, begin: Callable[[str, Callable[[], None]], None]) -> dict[str, float]:
    """When each of several things was done."""
    done: dict[str, float] = {}
    for name in names:
        begin(name, partial(_note, done, name, events))
    events.run(lambda: len(done) == len(names), inf)
    return done


def test_events_come_in_the_order_of_their_times_and_then_of_their_asking() -> None:
    events, said = Events(), list[str]()
    for seconds, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        events.after(seconds, said.append, name)
    assert not events.run(lambda: False, 1.5)
    assert said == ["a", "b"]
    assert not events.run(lambda: False, inf)
    assert said == ["a", "b", "c"]
    assert events.now == 2.0


def test_two_jobs_on_one_core_take_turns_and_on_two_they_do_not() -> None:
    work = {"a": 1.0, "b": 3.0}
    for cores, expected in ((1.0, {"a": 2.0, "b": 4.0}), (2.0, {"a": 1.0, "b": 3.0}), (inf, {"a": 1.0, "b": 3.0})):
        events = Events()
        processor = Processor(events, cores)

        def begin(name: str, call: Callable[[], None], processor: Processor = processor) -> None:
            processor.run(work[name], call)

        assert times(events, "ab", begin) == expected


def test_a_job_that_is_cancelled_has_done_its_share_and_calls_nobody() -> None:
    events = Events()
    processor = Processor(events, 1.0)
    called: list[str] = []
    first = processor.run(10.0, lambda: called.append("first"))
    processor.run(1.0, lambda: called.append("second"))
    events.after(1.0, lambda: called.append(f"{first.cancel():.1f}"))
    events.run(lambda: len(called) == 2, inf)
    assert called == ["0.5", "second"]
    assert events.now == pytest.approx(1.5)


def test_what_a_slow_receiver_cannot_take_goes_to_the_others() -> None:
    events = Events()
    link = Link(events, 100.0)
    size, most = {"slow": 100.0, "fast": 900.0}, {"slow": 10.0, "fast": 1000.0}
    done: dict[str, float] = {}
    for name in size:
        link.send(size[name], 1, most[name], partial(_note, done, name, events))
    events.run(lambda: len(done) == 2, inf)
    assert done == pytest.approx({"slow": 10.0, "fast": 10.0}, rel=0.02)
    assert link.sent == pytest.approx(1000.0, rel=0.01)
    assert link.busy_s == pytest.approx(10.0, rel=0.01)


def test_a_class_of_many_machines_takes_as_much_of_a_link_as_all_of_them() -> None:
    events = Events()
    link = Link(events, 100.0)
    done: list[float] = []
    link.send(1000.0, 10, 1000.0, lambda: done.append(events.now))
    events.run(lambda: bool(done), inf)
    assert done == pytest.approx([100.0], rel=0.01)


def test_an_engine_with_fewer_places_than_answers_begins_one_when_another_ends() -> None:
    engine, lease = Engine(2, 1.0, 0.0), flight(10, 4, 4, 4)
    engine.submit(lease)
    # 4 tokens, 4 more and 4 more beside the answer of 10: there is room for another lease once one answer is left.
    assert engine.work_ahead() == 10.0
    engine.finish(10.0)
    assert lease.unfinished == 1
    assert engine.work_ahead() == pytest.approx(2.0)


@pytest.mark.parametrize("lengths", [(5, 9, 2), (7,), (3, 3, 3)])
def test_one_lease_alone_takes_as_long_by_the_short_way_as_answer_by_answer(lengths: tuple[int, ...]) -> None:
    short, long = Engine(8, 0.5, 0.25), Engine(8, 0.5, 0.25)
    alone, beside = flight(*lengths), flight(*lengths)
    short.submit(alone)
    long.submit(beside)
    long._alone = None
    ahead = short.work_ahead()
    assert ahead == pytest.approx(long.work_ahead())
    short.finish(ahead)
    long.finish(ahead)
    assert (alone.unfinished, short.unfinished, beside.unfinished, long.unfinished) == (0, 0, 0, 0)


def test_more_answers_side_by_side_make_each_of_them_slower() -> None:
    engine = Engine(8, 1.0, 1.0)
    engine.submit(flight(10, 20))
    assert engine.work_ahead() == 10 * 3 + 10 * 2


def test_work_that_is_interrupted_goes_on_where_it_was() -> None:
    engine, first, second = Engine(8, 1.0, 0.0), flight(10), flight(10, number=1)
    engine.submit(first)
    engine.advance(4.0)
    engine.submit(second)
    assert engine.work_ahead() == pytest.approx(6.0)
    engine.drop(first)
    assert engine.work_ahead() == pytest.approx(10.0)
