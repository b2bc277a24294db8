"""The states of a node: of `banned` only looser honest rates are a way out, from every other a node recovers."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from shoal.coordinator.node_states import RULES, Event, State, after, holds_leases, may_lease

EVENTS = st.lists(st.sampled_from(Event), max_size=40)
NOT_READMITTED = [event for event in Event if event != Event.READMIT]
STATES = st.sampled_from(State)


def run(state: State, events: list[Event]) -> State:
    for event in events:
        state = after(state, event)
    return state


def test_every_state_has_its_rules() -> None:
    assert set(RULES) == set(State)


@given(STATES, st.lists(st.sampled_from(NOT_READMITTED), max_size=40))
def test_nothing_that_a_node_does_undoes_a_ban(state: State, events: list[Event]) -> None:
    assert run(after(state, Event.BAN), events) == State.BANNED


@given(STATES)
def test_who_is_admitted_again_begins_anew_and_nobody_else_is_touched(state: State) -> None:
    assert after(state, Event.READMIT) == (State.JOINED if state == State.BANNED else state)


@given(STATES, EVENTS)
def test_who_is_heard_gets_work_unless_suspended_or_banned(state: State, events: list[Event]) -> None:
    heard = after(run(state, events), Event.SEEN)
    assert may_lease(heard) == (heard not in (State.SUSPENDED, State.BANNED))


@given(STATES, st.lists(st.sampled_from([Event.SEEN, Event.QUIET, Event.LOST]), max_size=20))
def test_coming_and_going_neither_suspends_nor_frees(state: State, events: list[Event]) -> None:
    fixed = (State.SUSPENDED, State.BANNED)
    end = run(state, events)
    assert (end in fixed) == (state in fixed)
    assert end == state or state not in fixed


@given(STATES, st.sampled_from(Event))
def test_hearing_the_same_thing_twice_is_hearing_it_once(state: State, event: Event) -> None:
    once = after(state, event)
    # A suspension that ends makes a node a new one; hearing of it again is nothing new.
    assert after(once, event) == once


@given(STATES, STATES)
def test_every_state_but_banned_leads_to_every_other_but_joined(start: State, goal: State) -> None:
    reached, due = {start}, deque([start])
    while due:
        state = due.popleft()
        for event in NOT_READMITTED:
            if (then := after(state, event)) not in reached:
                reached.add(then)
                due.append(then)
    assert (goal in reached) == (start != State.BANNED or goal == State.BANNED)


def test_the_leases_of_who_is_gone_or_banned_go_back_to_the_pool() -> None:
    assert [state for state in State if not holds_leases(state)] == [State.GONE, State.BANNED]
