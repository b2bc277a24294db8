"""Many keys cost nothing: what somebody who has them can do to a run, and what not."""

import asyncio
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from shoal.coordinator.db.schema import nodes
from shoal.crypto.signed_request import sign_request
from shoal.protocol.refusal import Refusal
from shoal.protocol.verdict import Finding, Verdict
from tests.support.coordinator_in_process import HERE, TRAINER, VALIDATOR, World, key_of, make_config, world_at
from tests.support.strangers import Stranger
from tests.support.until import until


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
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"max_nodes": 2000}) as world:
        world.announce()
        world.hand_in("honest", world.take("honest"))
        accept(world)
        text = {"name": "\U00020000" * 64, "doing": "\U00020000" * 200, "waits_on": "\U00020000" * 64}
        fresh = {"role": "worker", "url": "", "state": "healthy", "reason": "x" * 4000, "refused": "", "version": None}
        fresh |= {"network": "", "profile": "p" * 180}
        counts = dict.fromkeys(
            ("accepted", "rejected", "samples", "tokens", "expired", "abandoned", "owed", "busy_s"), 0
        )
        now = world.clock() + 60
        times = {"joined": now, "seen": now, "since": now}
        rows = [{"address": f"0x{n:040x}", **text, **fresh, **counts, **times} for n in range(1500)]

        world.database.ask(lambda db: db.execute(nodes.insert(), rows))
        with world.link(key_of("anybody"), wait_s=5) as link:
            listed = [node["address"] for node in link.get("/v1/status")["nodes"]]
        assert {TRAINER.address, key_of("honest").address} <= set(listed)
        assert world.validator.is_out(0)


def test_joining_again_and_again_does_not_make_looking_costly(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.coordinator.coordinator.OVERVIEW_S", 60.0)
    world = small_world
    looked = set()
    for _ in range(3):
        assert world.request(key_of("a"), "POST", "/v1/nodes", {"role": "worker"}).status_code == 200
        assert httpx2.get(f"{world.url}/v1/status").status_code == 200
        assert world.coordinator._seen is not None
        looked.add(world.coordinator._seen[0])
    assert len(looked) == 1


def test_keys_that_joined_and_went_do_not_fill_a_run_for_good(tmp_path: Path) -> None:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"max_nodes": 4}) as world:
        world.announce()
        world.take("holder")
        for name in ("idle-0", "idle-1", "idle-2"):
            answer = world.request(key_of(name), "POST", "/v1/nodes", {"role": "worker"})
        assert answer.status_code == 429
        pass_time(world, 121)
        world.lease("holder")
        for name in ("late-0", "late-1", "late-2"):
            answer = world.request(key_of(name), "POST", "/v1/nodes", {"role": "worker"})
        assert answer.status_code == 429
        assert "which is the maximum" in answer.text
        assert world.link(key_of("late-0")).heartbeat()["do"] == "work"
        with pytest.raises(Refusal, match="has not joined"):
            world.link(key_of("idle-0")).heartbeat()


def test_files_that_are_rejected_take_no_more_room_than_they_are_given(world: World) -> None:
    world.announce()
    lease = world.take("cheater")
    world.hand_in("cheater", lease)
    (upload,) = world.validator.waiting(0, 2)
    _, sha256 = world.validator.read(upload)
    finding = Finding("format", "a file is what its lease asks for", "x", "y")
    world.validator.judge(upload, Verdict(False, sha256, False, finding))
    asyncio.run(world.coordinator.drop_rejected())
    assert len(list((world.path / "uploads").rglob("*.parquet"))) == 1, "an arbiter may have to judge it"
    world.coordinator._config = make_config(keep={"rejected_mib": 0})
    asyncio.run(world.coordinator.drop_rejected())
    assert list((world.path / "uploads").rglob("*.parquet")) == []
    answer = world.request(VALIDATOR, "GET", f"/v1/files/{lease.step}/{lease.submission}")
    assert (answer.status_code, "were removed after its verdict" in answer.text) == (410, True)
    assert httpx2.get(f"{world.url}/v1/submissions/{lease.step}/{lease.submission}").json()["verdict"]["finding"]


def test_a_lease_is_good_for_a_few_files_on_their_way_at_once(small_world: World) -> None:
    world = small_world
    world.announce()
    lease = world.take("a")
    target = f"/v1/files/{lease.step}/{lease.submission}?signal=2"
    host, port = world.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        for _ in range(3):
            headers = sign_request(key_of("a"), "PUT", target, "0" * 64, HERE, world.clock())
            head = [
                f"PUT {target} HTTP/1.1",
                "Host: x",
                "Content-Length: 100",
                *map(": ".join, headers.items()),
                "",
                "x",
            ]
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall("\r\n".join(head).encode())
        until(lambda: world.coordinator._coming[lease.step, lease.submission] == 3)
        answer = world.request(key_of("a"), "PUT", target, content=b"x" * 100)
        assert (answer.status_code, "3 files are already being uploaded" in answer.text) == (429, True)
    world.hand_in("a", lease)


def test_new_nodes_of_one_network_share_a_quota_and_crowd_nobody_out(tmp_path: Path, database_url: str) -> None:
    with world_at(tmp_path, database_url, swarm={"max_nodes": 8}) as world:
        world.announce()
        stranger = Stranger(world)
        assert stranger.spoil_all("198.51.100.7", most=7) == world.config.swarm.probation_files
        for number in range(7):
            if number > 4:
                stranger.join(f"idle-{number}", "198.51.100.8")
        assert stranger.spoil("elsewhere", "2001:db8::1")
        assert [upload.node for upload in world.validator.waiting(0, 2)].index(key_of("elsewhere").address) <= 1
