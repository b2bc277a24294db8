"""A node that cannot finish its leases hands them back: others get the work at once, and its draws wait for it."""

import pytest
from sqlalchemy import Connection, select

from shoal.coordinator import leases as leasing
from shoal.coordinator.coordinator import MAX_HAND_BACKS
from shoal.coordinator.db.schema import leases, nodes
from shoal.coordinator.lease_rules import MAX_GIVEN
from shoal.coordinator.node_states import MAX_EXPIRED
from shoal.coordinator.nodes import known
from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.verdict import Verdict
from tests.support.coordinator_in_process import World, good_file, key_of


@pytest.fixture
def run(world: World) -> World:
    world.announce()
    return world


def hand_back(world: World, name: str) -> list[tuple[int, int]]:
    with world.link(key_of(name)) as link:
        return link.hand_back()


def standing(world: World, name: str) -> tuple[int, int, int]:
    """Draws that a node owes, leases that it let expire in a row and in all; it is not suspended."""
    query = select(nodes).where(nodes.c.address == key_of(name).address)
    row = world.database.ask(lambda db: db.execute(query).one())
    assert row.state not in ("suspended", "banned")
    return row.owed, row.expired, row.abandoned


def accept_all(world: World) -> None:
    for upload in world.validator.waiting(0, 20):
        _, sha256 = world.validator.read(upload)
        world.validator.judge(upload, Verdict(True, sha256, True, None))


def same_draw(one: Lease, other: Lease) -> bool:
    return (one.beacon, one.seed, one.version) == (other.beacon, other.seed, other.version)


def test_what_is_handed_back_is_free_for_others_at_once(run: World) -> None:
    lease = run.take("a")
    assert run.trainer.count(0).leased == lease.groups
    assert hand_back(run, "a") == [(0, 0)]
    assert run.trainer.count(0).leased == 0
    assert hand_back(run, "a") == [], "there is nothing left to hand back"


def test_a_node_gets_the_draw_again_that_it_handed_back_and_no_other(run: World) -> None:
    first = run.take("a")
    for number in range(1, 4):
        hand_back(run, "a")
        again = run.take("a")
        assert same_draw(again, first)
        assert (again.step, again.submission, again.draw_of) == (0, number, "0/0")


def test_a_draw_that_was_handed_back_is_owed_until_it_is_done_and_costs_nothing_after(run: World) -> None:
    run.take("a")
    hand_back(run, "a")
    assert standing(run, "a") == (1, 0, 0)
    run.hand_in("a", run.take("a"))
    assert standing(run, "a") == (1, 0, 0), "rubbish is not work"
    accept_all(run)
    assert standing(run, "a") == (0, 0, 0)


def test_a_machine_that_is_paused_often_is_neither_suspended_nor_loses_its_draw(run: World) -> None:
    """Also more often than a draw is given that makes workers crash, and than leases in a row may expire."""
    first = run.take("a")
    for _ in range(max(MAX_EXPIRED, MAX_GIVEN) + 1):
        hand_back(run, "a")
        assert same_draw(run.take("a"), first)
    run.clock.ahead += 601.0  # and one expires after all
    run.database.ask(run.coordinator.sweep)
    assert standing(run, "a")[1:] == (1, 1)
    assert same_draw(run.take("a"), first)


def test_a_lease_that_was_handed_back_has_no_more_time_than_before(run: World) -> None:
    first = run.take("a")
    hand_back(run, "a")
    again = run.take("a")
    assert again.deadline - first.deadline < 60.0


def test_a_file_under_a_lease_that_was_handed_back_is_refused_and_says_why(run: World) -> None:
    lease = run.take("a")
    hand_back(run, "a")
    with pytest.raises(RolloutError, match="was handed back; its draw is given again"):
        run.hand_in("a", lease)
    run.take("a")
    with pytest.raises(RolloutError, match="was handed back; its draw"):
        run.hand_in("a", lease)


def test_a_file_that_was_on_its_way_when_its_lease_was_handed_back_counts(run: World) -> None:
    """Its node was paused while it sent the last bytes: the work is done, and nothing is owed."""
    lease = run.take("a")
    address, began = key_of("a").address, run.clock()
    hand_back(run, "a")
    data = good_file(lease)
    run.database.ask(lambda db: _arrive(db, address, lease, len(data), began, run.clock()))
    assert standing(run, "a") == (0, 0, 0)
    query = select(leases.c.status)
    assert run.database.ask(lambda db: db.execute(query).scalar()) == "used"


def _arrive(db: Connection, address: str, lease: Lease, size: int, began: float, now: float) -> None:
    leasing.take_upload(db, known(db, address), lease.step, lease.submission, "ab" * 32, size, 2, began, now)


def test_a_file_that_is_there_is_not_handed_back(run: World) -> None:
    run.hand_in("a", run.take("a"))
    assert hand_back(run, "a") == []
    accept_all(run)
    assert standing(run, "a") == (0, 0, 0)


def test_leases_of_a_version_that_is_taken_back_are_owed_by_nobody_who_handed_them_back(run: World) -> None:
    run.announce(1)
    run.take("a", version=1)
    hand_back(run, "a")
    run.trainer._link.retract(after=0)
    assert standing(run, "a")[0] == 0


def test_nobody_hands_back_leases_of_another(run: World) -> None:
    lease = run.take("a")
    assert run.lease("b") is not None
    assert hand_back(run, "b") == [(0, 1)]
    run.hand_in("a", lease)


def test_a_node_that_hands_back_all_the_time_fills_no_table(small_world: World) -> None:
    small_world.announce()
    small_world.take("a")
    statuses = [small_world.request(key_of("a"), "DELETE", "/v1/leases").status_code for _ in range(MAX_HAND_BACKS + 1)]
    assert statuses == [200] * MAX_HAND_BACKS + [429]
