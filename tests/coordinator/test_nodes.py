"""What time does to nodes and leases, and what people see of it; on SQLite and on PostgreSQL."""

import pytest

from shoal.coordinator.node_states import LOST_S, QUIET_S, SUSPENDED_S
from shoal.coordinator.nodes import sweep
from tests.support.coordinator_in_process import VALIDATOR, World, key_of

A = key_of("a")


def pass_time(world: World, seconds: float) -> None:
    world.clock.ahead += seconds
    world.database.ask(lambda db: sweep(db, world.clock()))
    world.coordinator._seen = None


def state_of(world: World, name: str = "a") -> str:
    world.coordinator._seen = None
    nodes = world.link(A).get("/v1/status")["nodes"]
    return next(str(node["state"]) for node in nodes if node["address"] == key_of(name).address)


def test_a_node_is_joined_then_healthy_then_silent_then_gone_and_comes_back(world: World) -> None:
    world.link(A).join("worker")
    assert state_of(world) == "joined"
    world.link(A).heartbeat()
    assert state_of(world) == "healthy"
    pass_time(world, QUIET_S + 1)
    assert state_of(world) == "silent"
    pass_time(world, LOST_S)
    assert state_of(world) == "gone"
    world.link(A).heartbeat()
    assert state_of(world) == "healthy"


def test_the_lease_of_a_node_that_is_gone_goes_back_at_once_and_its_file_still_counts(world: World) -> None:
    world.announce()
    lease = world.take("a")
    pass_time(world, LOST_S + 1)
    assert world.trainer.count(0).leased == 0
    world.hand_in("a", lease)
    assert world.trainer.count(0).seen == 2


def test_a_node_that_lets_leases_expire_is_suspended_for_a_while(world: World) -> None:
    world.announce()
    for _ in range(3):
        world.take("a")
        pass_time(world, 601)
        if state_of(world) != "suspended":
            world.link(A).heartbeat()
    assert state_of(world) == "suspended"
    answer = world.request(A, "POST", "/v1/leases", {"version": 0})
    assert answer.status_code == 403
    assert "let 3 leases in a row expire" in answer.json()["reason"]
    order = world.link(A).heartbeat()
    assert (order["do"], order["state"]) == ("wait", "suspended")
    pass_time(world, SUSPENDED_S)
    assert world.take("a").node == A.address


def test_a_suspended_worker_waits_for_work_and_does_not_end(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = small_world
    monkeypatch.setattr("shoal.client.rollout_store.SUSPENDED_RETRY_S", 0.0)
    world.announce()
    for _ in range(3):
        world.take("a")
        pass_time(world, 601)
    assert state_of(world) == "suspended"
    assert world.lease("a") is None
    pass_time(world, SUSPENDED_S)
    assert world.take("a").node == A.address


def test_work_done_clears_what_was_missed(world: World) -> None:
    world.announce()
    for _ in range(2):
        world.take("a")
        pass_time(world, 601)
    world.hand_in("a", world.take("a"))
    world.take("a")
    pass_time(world, 601)
    assert state_of(world) == "gone"
    world.link(A).heartbeat()
    assert state_of(world) == "healthy"


def test_status_counts_the_leases_that_a_node_let_expire_also_after_it_worked_again(world: World) -> None:
    def abandoned() -> int:
        world.coordinator._seen = None
        nodes = world.link(A).get("/v1/status")["nodes"]
        return next(int(node["abandoned"]) for node in nodes if node["address"] == A.address)

    world.announce()
    world.take("a")
    assert abandoned() == 0
    pass_time(world, 601)
    world.take("a")
    pass_time(world, 601)
    assert abandoned() == 2
    world.hand_in("a", world.take("a"))
    assert abandoned() == 2


def test_joining_again_changes_nothing_that_was_earned(world: World) -> None:
    world.announce()
    lease = world.take("a")
    world.link(A).join("worker", "my-laptop")
    assert world.take("a") == lease
    nodes = world.link(A).get("/v1/status")["nodes"]
    assert [node["name"] for node in nodes if node["address"] == A.address] == ["my-laptop"]


def test_status_says_who_does_what_and_waits_on_whom(world: World) -> None:
    world.announce()
    world.take("a")
    world.link(A).heartbeat("waiting for version 1", "trainer", 0)
    world.store(VALIDATOR)
    world.coordinator._seen = None
    status = world.link(A).get("/v1/status")
    (node,) = [node for node in status["nodes"] if node["address"] == A.address]
    assert (node["doing"], node["waits_on"], node["leases"]) == ("waiting for version 1", "trainer", 1)
    assert (status["version"], status["needed"], status["waiting"]) == (0, 4, 0)
    assert status["counts"]["0"] == {"seen": 0, "signal": 0, "leased": 2}
    assert sorted(node["role"] for node in status["nodes"]) == ["trainer", "validator", "worker"]


def test_a_complete_run_tells_its_nodes_to_stop(world: World) -> None:
    world.link(A).join("worker")
    for number in range(21):
        world.trainer._link.announce(number, f"{number:064x}")
    assert world.link(A).heartbeat()["do"] == "stop"
