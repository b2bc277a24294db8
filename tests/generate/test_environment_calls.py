"""Episodes that are given up: their environments end, whatever they were at."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.generate.engine import Completion, Request
from shoal.generate.environment_calls import EnvironmentCalls
from shoal.generate.episodes import Episode
from shoal.generate.flights import Flight
from shoal.protocol.lease import Lease
from shoal.protocol.stores import Version
from shoal.tasks.build import build_source
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.source import LocalHost
from shoal.tasks.source import Split, Task, TaskSource
from tests.support.held_results import HeldResults

EOS, LONGEST = 1, 40
# Like a server that has few sessions: each is taken until its episode has a score, or nobody holds its state.
COUNTED = """
import weakref

open_sessions = []

class Session:
    pass

def reset(seed):
    session = Session()
    state = {"prompt": f"what {seed % 9973}?", "session": session}
    open_sessions.append(seed)
    weakref.finalize(session, open_sessions.remove, seed)
    return state

def step(state, action):
    return None if action == "end" else str(len(open_sessions))

def score(state):
    return 1.0
"""


class Late(LocalHost):
    """Tells what was played when it is let."""

    def __init__(self, source: TaskSource) -> None:
        super().__init__(source)
        self.source, self.results = source, HeldResults()

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        return self.results.through(super().play(split, task, actions, **how))


@pytest.fixture
def host(tmp_path: Path) -> Late:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED)
    return Late(build_source([TaskConfig(source=f"environment/{path}")]))


def flight_of(host: Late, says: str) -> Flight:
    """Two episodes whose first turns were drawn, in which the policy says this."""
    episodes = [
        Episode(
            Request((5, 6), 7, number, LONGEST),
            task=host.source.task("train", number),
            max_turns=4,
            turn_tokens=8,
            decode=lambda ids: says,
            between=lambda *_: [50],
        )
        for number in range(2)
    ]
    return Flight.of(Lease("", "", 0, 0, 0, 0, 0, 0.0), Version(0, ""), [*episodes], LONGEST)


def say(calls: EnvironmentCalls, flight: Flight) -> None:
    for number in flight.due(flight.version):
        flight.ask(number)
        calls.add(flight, number, Completion(number, [20, EOS], [-0.5, -0.5], "eos", b""))


def sessions_of(host: Late) -> int:
    """How many sessions are taken, as an environment that is asked now says; without its own."""
    own = host.play("train", host.source.task("train", 9), ["how many?"]).result()
    return int(own.observations[0].text) - 1


@pytest.mark.parametrize("says", ["go on", "end"])
@pytest.mark.parametrize("is_held", [False, True])
def test_what_episodes_of_a_lease_hold_is_given_back_when_it_is_let_go(host: Late, says: str, is_held: bool) -> None:
    calls, flight = EnvironmentCalls(host), flight_of(host, says)
    host.results.is_held = is_held
    say(calls, flight)
    if not is_held:
        calls.hear()
    calls.forget(flight)
    assert not calls
    host.results.release()
    assert sessions_of(host) == 0


def test_episodes_of_other_leases_go_on(host: Late) -> None:
    calls, flight, other = EnvironmentCalls(host), flight_of(host, "go on"), flight_of(host, "go on")
    for one in (flight, other):
        say(calls, one)
        calls.hear()
    assert sessions_of(host) == 4
    calls.forget(flight)
    assert sessions_of(host) == 2
