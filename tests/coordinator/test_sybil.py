"""Many keys cost nothing: what somebody who has them can do to a run, and what not."""

import time
from pathlib import Path

import httpx2
import pytest

from shoal.swarm.tables import nodes
from shoal.validate.finding import Verdict

from .world import TRAINER, World, key_of, world_at


def accept(world: World) -> None:
    for upload in world.validator.waiting(0, 20):
        _, sha256 = world.validator.read(upload)
        world.validator.judge(upload, Verdict(True, sha256, True, samples=8, tokens=64))


def pass_time(world: World, seconds: float) -> None:
    world.clock.ahead += seconds
    world.database.ask(world.coordinator.sweep)


def test_who_has_brought_a_file_is_not_kept_from_work_by_those_who_have_not(world: World) -> None:
    world.announce()
    world.hand_in("honest", world.take("honest"))
    accept(world)
    assert len(world.take_all()) > 3
    assert world.lease("late") is None
    assert world.take("honest").step == 0


def test_a_key_that_lets_a_lease_expire_holds_nobody_up_again(world: World) -> None:
    world.announce()
    idle = world.take_all()
    assert world.lease("honest") is None
    for _ in range(2):
        pass_time(world, 601)
        for number in range(len(idle)):
            world.lease(f"node-{number}")  # as fast as before
        time.sleep(0.25)  # a node that was told to ask later does
        lease = world.take("honest")
        world.hand_in("honest", lease)
    assert world.trainer.count(0).seen > 0


def test_a_newcomer_whose_files_came_too_late_for_a_verdict_gets_work_again(tmp_path: Path) -> None:
    swarm = {"probation_files": 1}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm=swarm) as world:
        world.announce()
        world.hand_in("slow", world.take("slow"))
        assert world.lease("slow") is None
        world.announce(3)  # step 0 is trained without it, and nobody will look at it any more
        assert world.lease("slow", 3) is not None


def test_a_thousand_talkative_keys_hide_nobody_and_the_status_is_still_read(tmp_path: Path) -> None:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"most_nodes": 2000}) as world:
        world.announce()
        world.hand_in("honest", world.take("honest"))
        accept(world)
        text = {"name": "\U00020000" * 64, "doing": "\U00020000" * 200, "waits_on": "\U00020000" * 64}
        fresh = {"role": "worker", "url": "", "state": "healthy", "reason": "x" * 4000, "refused": "", "version": None}
        counts = dict.fromkeys(("accepted", "rejected", "samples", "tokens", "expired", "abandoned"), 0)
        now = world.clock() + 60
        times = {"joined": now, "seen": now, "since": now}
        rows = [{"address": f"0x{n:040x}", **text, **fresh, **counts, **times} for n in range(1500)]

        world.database.ask(lambda db: db.execute(nodes.insert(), rows))
        with world.link(key_of("anybody"), wait_s=5) as link:
            listed = [node["address"] for node in link.get("/v1/status")["nodes"]]
        assert {TRAINER.address, key_of("honest").address} <= set(listed)
        assert world.validator.is_out(0)


def test_joining_again_and_again_does_not_make_looking_costly(small_world: World) -> None:
    world = small_world
    looked = []
    for _ in range(5):
        world.request(key_of("a"), "POST", "/v1/nodes", {"role": "worker"})
        looked.append(httpx2.get(f"{world.url}/v1/status").content)
        if len(looked) > 1 and looked[-1] == looked[-2]:
            return
    pytest.fail("the overview was made anew each time")
