"""Invites to a closed run: each admits one node, once, whatever happens at the same time or in between."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client.client import CoordinatorClient
from shoal.client.invites import make_invites
from shoal.coordinator.command import open_coordinator, own_nodes
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, SwarmError
from shoal.protocol.invite import Invite
from shoal.protocol.refusal import Refusal
from shoal.rundir import RunDir, role_key
from tests.support.coordinator_in_process import COORDINATOR, VALIDATOR, World, key_of, make_config, world_at

A, B = key_of("a"), key_of("b")
LATER = 4_000_000_000


@pytest.fixture
def closed(tmp_path: Path, database_url: str) -> Iterator[World]:
    with world_at(tmp_path, database_url, swarm={"closed": True}) as world:
        yield world


def invite(expires: int = LATER, run: str = "test", key: Key = COORDINATOR) -> str:
    return str(Invite.make(run, key, expires))


def join(world: World, key: Key, token: str = "") -> int:
    body = {"role": "worker", **({"invite": token} if token else {})}
    return world.request(key, "POST", "/v1/nodes", body).status_code


def reason(world: World, key: Key, token: str) -> str:
    return str(world.request(key, "POST", "/v1/nodes", {"role": "worker", "invite": token}).json()["reason"])


def test_a_closed_run_admits_its_own_and_those_with_an_invite(closed: World) -> None:
    assert "brings no invite" in reason(closed, A, "")
    assert closed.request(VALIDATOR, "POST", "/v1/nodes", {"role": "validator"}).status_code == 200
    assert join(closed, A, invite()) == 200
    assert closed.request(A, "POST", "/v1/heartbeats", {}).status_code == 200


def test_an_invite_admits_one_node_and_that_one_again_without_it(closed: World) -> None:
    token = invite()
    assert join(closed, A, token) == 200
    assert join(closed, A, token) == 200
    assert join(closed, A) == 200
    assert join(closed, B, token) == 409
    assert "used by another node" in reason(closed, B, token)
    closed.stop()
    closed.start()
    assert join(closed, B, token) == 409
    assert join(closed, A) == 200


def test_of_many_that_bring_one_invite_at_the_same_time_one_is_admitted(closed: World) -> None:
    token, answers = invite(), list[int]()
    keys = [key_of(f"racer-{number}") for number in range(12)]
    ready = threading.Barrier(len(keys))

    def race(key: Key) -> None:
        ready.wait()
        answers.append(join(closed, key, token))

    threads = [threading.Thread(target=race, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, *[409] * (len(keys) - 1)]


def test_an_invite_that_expired_admits_nobody_new(closed: World) -> None:
    token = invite(expires=int(closed.clock()) + 50)
    closed.clock.ahead = 100
    assert join(closed, A, token) == 410
    closed.clock.ahead = 0
    assert join(closed, A, token) == 200
    closed.clock.ahead = 100
    assert join(closed, A, token) == 200


def test_an_invite_of_another_run_or_coordinator_admits_nobody(closed: World) -> None:
    assert "may be one of another run" in reason(closed, A, invite(run="other"))
    assert join(closed, A, invite(key=B)) == 403
    assert join(closed, A, invite()[:-9] + "AAAAAAAAA") == 403
    assert join(closed, A, "x") == 422
    assert join(closed, A, "\x1b[2J") == 422
    assert join(closed, A, "0" * 5000) == 422


def test_a_revoked_invite_admits_nobody_and_one_that_was_used_cannot_be_revoked(closed: World) -> None:
    token, used = invite(), invite()
    number = token.partition(".")[0]
    assert closed.request(A, "DELETE", f"/v1/invites/{number}").status_code == 403
    assert closed.request(COORDINATOR, "DELETE", f"/v1/invites/{number}").json() == {"changed": True}
    assert closed.request(COORDINATOR, "DELETE", f"/v1/invites/{number}").json() == {"changed": False}
    assert "revoked" in reason(closed, A, token)
    assert join(closed, A, used) == 200
    refused = closed.request(COORDINATOR, "DELETE", f"/v1/invites/{used.partition('.')[0]}")
    assert (refused.status_code, A.address in refused.json()["reason"]) == (409, True)
    assert closed.request(B, "GET", "/v1/invites").status_code == 403
    records = closed.request(COORDINATOR, "GET", "/v1/invites").json()["invites"]
    assert {(record["id"], record["node"]) for record in records} == {
        (number, ""),
        (used.partition(".")[0], A.address),
    }


def test_an_invite_is_not_used_up_by_a_node_that_is_refused_for_something_else(tmp_path: Path) -> None:
    token = invite()
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"closed": True, "max_nodes": 1}) as world:
        assert join(world, A, invite()) == 200
        assert join(world, B, token) == 429
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"closed": True}) as world:
        assert join(world, B, token) == 200


def test_an_open_run_uses_up_no_invites(tmp_path: Path) -> None:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}") as world:
        assert join(world, A, invite()) == 200
        assert world.request(COORDINATOR, "GET", "/v1/invites").json() == {"invites": []}


def test_the_line_with_an_invite_joins_and_the_line_without_it_does_not(closed: World) -> None:
    with CoordinatorClient(f"{closed.url}#{COORDINATOR.address}", A, 5.0) as link, pytest.raises(Refusal):
        link.join("worker")
    with CoordinatorClient(f"{closed.url}#{COORDINATOR.address}+{invite()}", A, 5.0) as link:
        link.join("worker")
        assert link.heartbeat()["do"] == "work"
    with pytest.raises(SwarmError, match="is damaged"):
        CoordinatorClient(f"{closed.url}#{COORDINATOR.address}+{invite()[:-1]}", A, 5.0)


def test_a_closed_run_admits_the_nodes_that_it_starts_itself(tmp_path: Path) -> None:
    config = make_config(swarm={"closed": True}, workers={"count": 2})
    coordinator, database = open_coordinator(config, tmp_path)
    try:
        allowed = coordinator.terms.allow or frozenset()
        assert own_nodes(config) == ["relay", "worker-0", "worker-1"]
        assert {role_key(tmp_path, name).address for name in own_nodes(config)} <= allowed
        assert A.address not in allowed
    finally:
        coordinator.ledger_writer.close()
        database.close()


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("rubbish", "is not the URL of a coordinator"),
        ("", "is not the URL of a coordinator"),
        ("http://1.2.3.4:5 ; rm -rf", "Port could not be cast"),
        ("http://1.2.3.4/;rm", "has others than letters"),
        ("http://$(id)/", "has others than letters"),
        ("http://[::1/x", "Invalid IPv6 URL"),
        ("https://host:7000#0x12", "has others than letters"),
    ],
)
def test_no_line_is_made_that_leads_nowhere_or_is_not_safe_to_paste(tmp_path: Path, url: str, fault: str) -> None:
    run = RunDir(tmp_path, make_config(swarm={"closed": True}))
    role_key(tmp_path, "coordinator")
    with pytest.raises(ConfigError, match=rf"^--url .*{fault}.*; give the coordinator's, as in https://HOST:7000$"):
        make_invites(run, url, LATER, 1)
    (line,) = make_invites(run, "https://[2001:db8::1]:7000/shoal/", LATER, 1)
    assert line.startswith("shoal worker --join https://[2001:db8::1]:7000/shoal#0x")
