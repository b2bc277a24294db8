"""What answers go on with is given once per span, after the version is named: a worker has nothing to choose by."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from shoal.coordinator.db.schema import LeaseStatus, leases, nodes
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease
from tests.support.coordinator_in_process import COORDINATOR, World, key_of, world_at
from tests.support.submissions import ROOT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = f"sqlite:///{tmp_path / 'state.db'}"
    sampling, train = {"max_new_tokens": 100}, {"token_budget": 200}
    with world_at(tmp_path, database, sampling=sampling, train=train, workers={"in_flight": True}) as world:
        world.announce(0)
        yield world


def span(world: World, lease: Lease, first: int, version: int, name: str = "a") -> SpanLease:
    return world.store(key_of(name)).span(lease, first, version)


def late_lease(world: World) -> Lease:
    """One of version 0 for step 1, so that version 1 may draw a part of it."""
    for number in range(20):
        lease = world.take("a" if number == 0 else f"n{number}")
        if lease.step == 1:
            return lease
    raise AssertionError("no lease for step 1")


def test_a_span_is_the_same_however_often_and_with_whichever_version_it_is_asked_for(world: World) -> None:
    lease = world.take("a")
    first = span(world, lease, 32, 0)
    assert (first.first, first.version, first.weights) == (32, 0, ROOT)
    first.check(lease, COORDINATOR.address)
    assert span(world, lease, 32, 0) == first
    second = span(world, lease, 64, 0)
    assert second.beacon != first.beacon
    other = world.take("b")
    assert span(world, other, 32, 0, "b").beacon != first.beacon
    world.announce(1)
    assert span(world, lease, 32, 1) == first, "what was given before stays, though the step is over"


def test_a_newer_version_draws_the_rest_once_it_is_announced_and_never_an_older_one(world: World) -> None:
    lease = late_lease(world)
    node = next(name for name in ("a", *(f"n{n}" for n in range(20))) if key_of(name).address == lease.node)
    with pytest.raises(RolloutError, match="version 1 cannot draw its span from token 32 on; announced versions 0"):
        span(world, lease, 32, 1, node)
    world.announce(1)
    assert span(world, lease, 32, 1, node).version == 1
    with pytest.raises(
        RolloutError, match=r"version 0 cannot draw its span from token 64 on; announced versions 1\.\.1"
    ):
        span(world, lease, 64, 0, node)


def test_a_lease_whose_answers_were_to_go_on_with_a_version_that_is_taken_back_ends_and_nobody_owes_it(
    world: World,
) -> None:
    lease = late_lease(world)
    node = next(name for name in ("a", *(f"n{n}" for n in range(20))) if key_of(name).address == lease.node)
    world.announce(1)
    assert span(world, lease, 32, 1, node).version == 1
    world.trainer._link.retract(0)
    world.clock.ahead = 10_000.0
    world.lease("z")  # by then leases that are open have expired
    query = select(leases.c.status, nodes.c.owed).join(nodes, nodes.c.address == leases.c.node)
    row = world.database.ask(lambda db: db.execute(query.where(leases.c.node == lease.node)).one())
    assert (row.status, row.owed) == (LeaseStatus.VOID, 0)


@pytest.mark.parametrize("first", [0, 1, 33, 128, 96_000])
def test_spans_begin_where_the_run_has_them_begin(world: World, first: int) -> None:
    with pytest.raises(RolloutError, match=f"no span begins at token {first}: spans have 32 tokens"):
        span(world, world.take("a"), first, 0)


def test_spans_come_one_after_the_other_and_only_to_the_leases_own_node(world: World) -> None:
    lease = world.take("a")
    with pytest.raises(RolloutError, match="the span before the one from token 64 on was not asked for"):
        span(world, lease, 64, 0)
    with pytest.raises(RolloutError, match="was issued to"):
        span(world, lease, 32, 0, "b")
    with pytest.raises(RolloutError, match="was never issued"):
        span(world, replace(lease, submission=99), 32, 0)


def test_where_answers_keep_their_version_there_are_no_spans(tmp_path: Path) -> None:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}") as world:
        world.announce(0)
        with pytest.raises(RolloutError, match=r"workers\.in_flight is false, and answers keep their version"):
            span(world, world.take("a"), 32, 0)


def test_a_lease_that_was_handed_back_goes_on_as_it_did_before(world: World) -> None:
    """Otherwise a worker would see how its answers go on, and hand them back until they suit it."""
    lease = world.take("a")
    given = [span(world, lease, first, 0) for first in (32, 64)]
    for holder, name in (("a", "a"), ("a", "b")):  # also for a key that costs nothing, in the same network
        with world.link(key_of(holder)) as link:
            link.hand_back()
        again = world.take(name)
        assert (again.beacon, again.seed, again.version) == (lease.beacon, lease.seed, lease.version)
        assert [span(world, again, first, 0, name).beacon for first in (32, 64)] == [one.beacon for one in given]
        assert span(world, again, 96, 0, name).beacon not in [one.beacon for one in given]


def test_a_neighbour_that_takes_over_what_was_handed_back_answers_with_the_same_version(world: World) -> None:
    lease = late_lease(world)
    node = next(name for name in ("a", *(f"n{n}" for n in range(20))) if key_of(name).address == lease.node)
    world.announce(1)
    with world.link(key_of(node)) as link:
        link.hand_back()
    again = world.take("neighbour", version=1)
    assert (again.beacon, again.version) == (lease.beacon, 0)
