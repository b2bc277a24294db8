"""How long work takes through a run: what the coordinator says of a version's rollouts and of verdicts."""

import io
import time

import pytest
from rich.console import Console

from shoal.client.run_status import print_swarm
from shoal.coordinator.latencies import Latencies, latencies, percentile
from tests.support.coordinator_in_process import World
from tests.support.submissions import judge_formats


def set_clock(world: World, seconds: float) -> None:
    """Stops the coordinator's clock at a time after the first such call: what the requests take does not count."""
    began = world.__dict__.setdefault("began", time.time())
    world.coordinator.clock = lambda: began + seconds


def told(world: World, version: int) -> Latencies:
    return world.database.ask(lambda db: latencies(db, world.coordinator.terms, version))


def test_a_version_is_followed_to_its_first_rollout_and_to_a_full_batch(world: World) -> None:
    reported: list[Latencies] = []
    world.coordinator._report = reported.append
    set_clock(world, 0)
    world.announce()
    assert told(world, 0) == Latencies(0, None, None, None, None)
    leases = [world.take(f"node-{number}") for number in range(2)]
    set_clock(world, 10)
    world.hand_in("node-0", leases[0])
    set_clock(world, 14)
    judge_formats(world.validator, 0, 0)
    found = told(world, 0)
    assert found.first_rollout_s == pytest.approx(10)
    assert found.full_batch_s is None  # two of four groups
    assert found.verdict_p50_s == pytest.approx(4)
    world.hand_in("node-1", leases[1])
    set_clock(world, 40)
    judge_formats(world.validator, 0, 0)
    found = told(world, 0)
    assert found.full_batch_s == pytest.approx(40)
    assert found.verdict_p50_s == pytest.approx(4)
    assert found.verdict_p95_s == pytest.approx(26)
    assert reported == []
    world.announce(1)
    assert reported == [told(world, 0)]
    world.announce(1)  # the same again is not news
    assert len(reported) == 1


def test_a_step_that_older_versions_filled_had_its_batch_at_once(small_world: World) -> None:
    small_world.announce()
    for number in range(4):  # both steps 0 and 1 are filled with version 0
        small_world.hand_in(f"node-{number}", small_world.take(f"node-{number}"))
    judge_formats(small_world.validator, 0, 2)
    set_clock(small_world, 5)
    small_world.announce(1)
    assert told(small_world, 1).full_batch_s == 0
    assert told(small_world, 1).first_rollout_s is None


def test_a_file_of_a_version_that_was_taken_back_is_not_the_first_of_the_next_one(small_world: World) -> None:
    small_world.announce(1)
    small_world.hand_in("a", small_world.take("a", 1))
    assert told(small_world, 1).first_rollout_s is not None
    small_world.trainer._link.retract(0)
    set_clock(small_world, 5)
    small_world.announce(1)
    assert told(small_world, 1).first_rollout_s is None


def test_the_status_of_a_run_without_a_version_says_so_in_words(small_world: World) -> None:
    out = io.StringIO()
    print_swarm(small_world.url, Console(file=out, width=200))
    steps = small_world.coordinator.terms.steps
    assert f": no version of {steps} yet; files: 0 accepted" in out.getvalue()


def test_the_status_says_it_in_one_line(small_world: World) -> None:
    out = io.StringIO()
    small_world.announce()
    print_swarm(small_world.url, Console(file=out, width=200))
    assert "version 0: first rollout after not yet" in out.getvalue()


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.95) == 95
