"""Keys cost nothing: a stranger with thousands of them keeps nobody from work, a verdict or a place in the run."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.client.client import MAX_ANSWER
from shoal.client.ledger import follow
from shoal.coordinator.db.schema import nodes
from shoal.coordinator.http.api import MAX_LINES_BYTES
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Recipient, sign_request
from shoal.ledger.acts import Withdraw
from shoal.ledger.entry import Statement
from shoal.ledger.store import SqliteLedger
from shoal.protocol.lease import Lease
from shoal.protocol.verdict import Verdict
from tests.support.coordinator_in_process import COORDINATOR, TRAINER, VALIDATOR, World, good_file, key_of, world_at
from tests.support.strangers import Stranger

HOME, ELSEWHERE = "198.51.100.7", "203.0.113.9"


def run_at(path: Path, **changes: Any) -> Any:
    return world_at(path, f"sqlite:///{path / 'state.db'}", **changes)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[World]:
    with run_at(tmp_path) as world:
        world.announce()
        yield world


def accept(world: World, node: str) -> None:
    for upload in world.validator.waiting(0, 20):
        if upload.node == key_of(node).address:
            _, sha256 = world.validator.read(upload)
            world.validator.judge(upload, Verdict(True, sha256, True, samples=8, tokens=64))


def prove(world: World, name: str) -> None:
    world.hand_in(name, world.take(name))
    accept(world, name)


def listed(world: World) -> list[tuple[str, int]]:
    answer = world.request(VALIDATOR, "GET", "/v1/files?first=0&last=9").json()["files"]
    return [(file["lease"]["node"], file["record"]) for file in answer]


def test_rubbish_of_fresh_keys_never_keeps_a_proven_node_from_work(busy: World) -> None:
    prove(busy, "honest")
    stranger = Stranger(busy)
    for number in range(4):
        stranger.spoil_all(f"10.0.{number}.1", most=8)
    lease = busy.take("honest")
    assert lease.step == 0
    busy.hand_in("honest", lease)
    accept(busy, "honest")
    assert busy.trainer.count(0).seen >= 4
    assert len(list(busy.trainer.accepted(0))) == 2


def test_rubbish_of_one_place_never_keeps_a_newcomer_elsewhere_from_work(busy: World) -> None:
    stranger = Stranger(busy)
    assert stranger.spoil_all(HOME) == busy.config.swarm.probation_files
    stranger.join("honest", ELSEWHERE)
    assert stranger.lease("honest", ELSEWHERE)["step"] == 0


def test_rubbish_is_never_judged_before_the_work_of_proven_nodes_and_of_newcomers_elsewhere(busy: World) -> None:
    prove(busy, "proven")
    stranger = Stranger(busy)
    stranger.spoil_all(HOME)
    assert stranger.spoil("newcomer", ELSEWHERE)
    busy.hand_in("proven", busy.take("proven"))
    order = listed(busy)
    assert order[0] == (key_of("proven").address, 2)
    assert (key_of("newcomer").address, 1) in order[1:3]
    assert [record for _, record in order] == sorted((record for _, record in order), reverse=True)


def test_what_strangers_hand_in_never_grows_without_bound(tmp_path: Path) -> None:
    with run_at(tmp_path, train={"groups_per_step": 2, "oversample": 1.0}) as world:
        world.announce()
        stranger = Stranger(world)
        came = [stranger.spoil(f"key-{n}", f"10.{n}.0.1") for n in range(40)]
        assert came.count(True) < 40
        assert not came[-1]


def test_many_nodes_behind_one_router_are_never_kept_out(busy: World) -> None:
    """Each whose work was accepted makes room for one more."""
    stranger = Stranger(busy)
    names = [f"home-{n}" for n in range(12)]
    done: set[str] = set()
    for version in range(4):
        busy.announce(version)
        for name in names:
            stranger.join(name, HOME)
            if name in done or (lease := stranger.lease(name, HOME, version)) is None:
                continue
            data = good_file(Lease(**lease))
            target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={lease['groups']}"
            stranger.ask(key_of(name), HOME, "PUT", target, data=data)
            accept(busy, name)
            done.add(name)
    assert done == set(names)


def test_keys_that_were_used_and_left_never_keep_a_newcomer_out(tmp_path: Path) -> None:
    with run_at(tmp_path, swarm={"max_nodes": 6}) as world:
        world.announce()
        prove(world, "honest")
        stranger = Stranger(world)
        for number in range(3):
            stranger.join(f"gone-{number}", HOME)
            stranger.lease(f"gone-{number}", HOME)
        banned = key_of("gone-0").address
        world.validator.ban(banned, "rubbish")
        world.clock.ahead += 700
        world.database.ask(world.coordinator.sweep)
        for number in range(12):
            stranger.join(f"wave-{number}", HOME)
            stranger.lease(f"wave-{number}", HOME)
            world.clock.ahead += 121
            world.database.ask(world.coordinator.sweep)
        stranger.join("newcomer", ELSEWHERE)
        assert len(world.coordinator.members) <= 7
        assert stranger.send(key_of("gone-0"), HOME, "POST", "/v1/nodes", b'{"role": "worker"}').status_code == 403
        assert world.link(key_of("honest")).heartbeat()["accepted"] == 1


def test_keys_that_one_place_keeps_alive_never_keep_a_newcomer_out(tmp_path: Path) -> None:
    with run_at(tmp_path, swarm={"max_nodes": 8}) as world:
        world.announce()
        world.validator  # noqa: B018
        stranger = Stranger(world)
        for number in range(6):
            stranger.join(f"key-{number}", HOME)
        answer = stranger.send(key_of("one-more"), HOME, "POST", "/v1/nodes", b'{"role": "worker"}')
        assert answer.status_code == 429
        stranger.join("newcomer", ELSEWHERE)


def test_a_forgotten_node_never_has_to_be_started_again(tmp_path: Path) -> None:
    with run_at(tmp_path) as world:
        world.announce()
        world.store(key_of("sleeper"))
        world.database.ask(lambda db: db.execute(nodes.delete().where(nodes.c.address == key_of("sleeper").address)))
        assert world.take("sleeper").node == key_of("sleeper").address


def test_a_request_of_one_run_is_never_good_in_another_of_the_same_coordinator(busy: World) -> None:
    other = Recipient(COORDINATOR.address, "another")
    answer = busy.request(TRAINER, "DELETE", "/v1/versions?after=0", to=other)
    assert (answer.status_code, answer.json()["error"]) == (401, "recipient")
    digest = hashlib.sha256(b"").hexdigest()
    signed = sign_request(TRAINER, "DELETE", "/v1/versions?after=0", digest, other, busy.clock())
    answer = busy.send("DELETE", "/v1/versions?after=0", b"", signed | {"Shoal-Run": "test"})
    assert answer.status_code == 403  # a signature of nobody


def test_leases_are_never_chosen_by_abandoning_the_others(busy: World) -> None:
    """Two of three abandoned, and never three in a row."""
    suspended = False
    for number in range(15):
        busy.announce(number // 2)
        lease = busy.lease("chooser", number // 2)
        if lease is None:
            suspended = True
            break
        if number % 3 == 2:
            busy.hand_in("chooser", lease)
            accept(busy, "chooser")
        else:
            busy.clock.ahead += 601
            busy.database.ask(busy.coordinator.sweep)
    assert suspended
    answer = busy.request(key_of("chooser"), "POST", "/v1/leases", {"version": 7})
    assert "of the last" in answer.json()["reason"]


def statements(world: World, keys: Sequence[Key], each: int) -> list[int]:
    ledger = world.ledger_writer._ledger
    assert isinstance(ledger, SqliteLedger)
    answers = []
    for key in keys:
        for number in range(each):
            said = Statement.sign(key, "test", ledger.name, Withdraw(id=f"w{number}")).model_dump(mode="json")
            answers.append(world.request(key_of("bringer"), "POST", "/v1/ledger/statements", said).status_code)
    return answers


def test_keys_that_never_joined_never_enter_anything_on_the_ledger(busy: World) -> None:
    busy.store(key_of("bringer"))
    before = busy.ledger_writer.stored_lines(0, 1 << 20)
    assert set(statements(busy, [Key.create() for _ in range(5)], 1)) == {403}
    answers = statements(busy, [key_of("bringer")], 25)
    assert answers.count(429) == 5
    assert busy.ledger_writer.stored_lines(0, 1 << 20) == before


def test_a_long_ledger_is_never_more_than_a_follower_reads_at_once(
    busy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_LINES_BYTES < MAX_ANSWER
    for number in range(1, 9):
        busy.announce(number)
    busy.ledger_writer.keep(busy.database)
    monkeypatch.setattr("shoal.coordinator.http.api.MAX_LINES_BYTES", 1500)
    with busy.link(key_of("reader")) as link:
        first = link.get("/v1/ledger/entries?first=0")["lines"]
        history = follow(link)
    assert history.number + 1 > len(first)


def test_a_newcomer_is_never_left_without_a_reason(busy: World) -> None:
    stranger = Stranger(busy)
    stranger.spoil_all(HOME)
    answer = stranger.ask(key_of(f"{HOME}-4"), HOME, "POST", "/v1/leases", {"version": 0})
    assert "new nodes of network 198.51.100.0/24" in answer["reason"]
