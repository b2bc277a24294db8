"""Automatic leases: a slow honest node with long answers is not cut off, and one that falls silent holds nothing up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.clocks import HEADROOM, MAX_TIMES, newcomer_lease_s
from shoal.coordinator.lease_rules import PIPELINE
from shoal.coordinator.node_states import LOST_S
from shoal.coordinator.nodes import known
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.verdict import Verdict
from tests.support.coordinator_in_process import World, key_of, world_at

TOKENS = 2 * 4 * 32768  # of a submission at its longest
NEW_S = newcomer_lease_s(TOKENS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    sampling, workers = {"max_new_tokens": 32768}, {"lease_s": None}
    train = {"token_budget": 40000}
    database = f"sqlite:///{tmp_path / 'state.db'}"
    with world_at(tmp_path, database, sampling=sampling, workers=workers, train=train) as world:
        world.announce()
        yield world


def lasts_s(world: World, lease: Lease) -> float:
    return lease.deadline - world.clock()


def pass_time(world: World, seconds: float) -> None:
    world.clock.ahead += seconds
    world.database.ask(world.coordinator.sweep)


def accept(world: World, tokens: int) -> None:
    for upload in world.validator.waiting(0, 9):
        _, sha256 = world.validator.read(upload)
        world.validator.judge(upload, Verdict(True, sha256, False, samples=8, tokens=tokens))


def test_a_slow_honest_node_with_long_answers_is_not_cut_off(world: World) -> None:
    first = world.take("slow")
    assert lasts_s(world, first) == pytest.approx(NEW_S, rel=0.01)
    assert NEW_S > 1200
    pass_time(world, 1200.0)
    world.hand_in("slow", first)
    # 50 tokens per second: a file of full length takes it 87 minutes, and the next lease has time for that.
    accept(world, tokens=60_000)
    assert lasts_s(world, world.take("slow")) == pytest.approx(MAX_TIMES * NEW_S, rel=0.01)
    assert MAX_TIMES * NEW_S > TOKENS / 50


def test_a_fast_node_gets_a_lease_that_fits_its_own_speed(world: World) -> None:
    lease = world.take("fast")
    pass_time(world, 100.0)
    world.hand_in("fast", lease)
    accept(world, tokens=100 * 1000)
    assert lasts_s(world, world.take("fast")) == pytest.approx(HEADROOM * TOKENS / 1000, rel=0.01)


def test_a_silent_node_holds_up_a_step_no_longer_than_it_takes_to_miss_it(world: World) -> None:
    lease = world.take("silent")
    assert world.trainer.count(0).leased == lease.groups
    pass_time(world, LOST_S + 1)
    assert world.trainer.count(0).leased == 0


def test_a_draw_that_was_let_go_is_given_again_with_twice_the_time(world: World) -> None:
    lease = world.take("late")
    pass_time(world, NEW_S + 1)
    with pytest.raises(RolloutError, match="expired 1 s ago"):
        world.hand_in("late", lease)
    again = world.take("late")
    assert (again.beacon, again.draw_of) == (lease.beacon, f"{lease.step}/{lease.submission}")
    assert lasts_s(world, again) == pytest.approx(2 * NEW_S, rel=0.01)


def test_a_lease_for_fewer_groups_has_the_time_of_a_full_one(world: World) -> None:
    """Speed is that of many answers side by side, and one alone takes as long as each of them."""
    terms = world.coordinator.terms
    full = terms.lease_for(terms.groups_per_submission, tokens=768_000, busy_s=100.0, given=1)
    assert full >= HEADROOM * terms.groups_per_submission * terms.group_tokens / 7680
    assert terms.lease_for(1, tokens=768_000, busy_s=100.0, given=1) == full
    assert terms.lease_for(1, tokens=0, busy_s=0.0, given=1) <= NEW_S


def proven(world: World, name: str, seconds: float = 100.0, tokens: int = 100_000) -> None:
    """A node with one accepted file, for which it took so long."""
    lease = world.take(name)
    pass_time(world, seconds)
    world.hand_in(name, lease)
    accept(world, tokens)


def test_a_newcomer_holds_one_lease_and_a_node_with_a_record_as_many_as_keep_it_busy(world: World) -> None:
    first = world.take("new")
    assert world.lease("new", holding=[first]) is None
    world.hand_in("new", first)
    accept(world, 1000)
    held: list[Lease] = []
    while (lease := world.lease("new", holding=held)) is not None:
        held.append(lease)
        assert len(held) <= PIPELINE
    assert len(held) == PIPELINE
    assert len({lease.beacon for lease in held}) == PIPELINE


def test_a_killed_node_gets_back_every_lease_that_it_held(world: World) -> None:
    proven(world, "killed")
    held: list[Lease] = []
    while (lease := world.lease("killed", holding=held)) is not None:
        held.append(lease)
    again: list[Lease] = []
    for _ in held:
        again.append(world.take("killed", holding=again))
    assert sorted(again, key=str) == sorted(held, key=str)


def test_each_of_several_leases_has_the_time_of_all(world: World) -> None:
    proven(world, "fast")
    first = world.take("fast")
    alone_s = HEADROOM * TOKENS / 1000
    assert lasts_s(world, first) == pytest.approx(alone_s, rel=0.01)
    second = world.take("fast", holding=[first])
    assert lasts_s(world, second) == pytest.approx(2 * alone_s, rel=0.01)


def test_a_node_is_as_fast_with_leases_side_by_side_as_with_the_same_ones_in_turn(world: World) -> None:
    """Three files of 100 s each in 300 s, all of them leased at the beginning: that is as fast as in turn."""
    proven(world, "fast")
    held: list[Lease] = []
    for _ in range(3):
        held.append(world.take("fast", holding=held))
    for lease in held:
        pass_time(world, 100.0)
        world.hand_in("fast", lease)
    accept(world, 100_000)
    node = world.database.ask(lambda db: known(db, key_of("fast").address))
    assert node.tokens == 400_000
    assert node.busy_s == pytest.approx(400.0, rel=0.01)
