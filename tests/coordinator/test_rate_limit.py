"""The rate limit holds against a flood of requests, and nodes that work never reach it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.config import SwarmConfig
from shoal.coordinator.http.body_limits import Receive, Scope, Send
from shoal.coordinator.http.rate_limit import BURST_S, Guard, network_of
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import sign_request
from shoal.protocol.refusal import Refusal
from tests.support.coordinator_in_process import HERE, TRAINER, World, key_of, world_at

A, B = key_of("a"), key_of("b")
DEFAULT = SwarmConfig().requests_per_s
# More than a bucket of one request per second holds, and gains while a machine of many tests makes them.
MANY = int(BURST_S) + 20


class Door:
    """A guard in front of nothing, with a clock to set."""

    def __init__(self, per_s: float, members: set[str]) -> None:
        self.now = 0.0
        recipient, trusted = HERE, {TRAINER.address}
        self._guard = Guard(self._app, per_s, recipient, members, trusted, lambda: 1e9, lambda: self.now)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.came = scope

    def is_open(self, host: str, key: Key | None = None) -> bool:
        """Whether a request is let through."""
        empty = hashlib.sha256(b"").hexdigest()
        signed = sign_request(key, "GET", "/v1/files", empty, HERE, 1e9) if key else {}
        headers = [(name.lower().encode(), value.encode()) for name, value in signed.items()]
        place = {"method": "GET", "raw_path": b"/v1/files", "query_string": b""}
        scope: Scope = {"type": "http", "client": (host, 1), "headers": headers, **place}

        async def never(*_: Any) -> Any:
            raise AssertionError

        try:
            self._guard(scope, never, never).send(None)  # nothing in it waits
        except Refusal:
            return False
        except StopIteration:
            return True
        raise AssertionError


def test_who_asks_too_often_is_refused_and_may_ask_again_at_the_rate() -> None:
    door = Door(2.0, {A.address})
    burst = int(2 * BURST_S)
    assert [door.is_open("10.0.0.1", A) for _ in range(burst + 3)] == [True] * burst + [False] * 3
    door.now += 1.0
    assert [door.is_open("10.0.0.1", A) for _ in range(3)] == [True, True, False]


def test_nodes_behind_one_router_are_counted_each_for_itself() -> None:
    door = Door(1.0, {A.address, B.address})
    while door.is_open("10.0.0.1", A):
        pass
    assert door.is_open("10.0.0.1", B)
    assert door.is_open("10.0.0.1")


def test_a_new_key_for_each_request_is_of_no_use() -> None:
    door = Door(1.0, {A.address})
    let_in = sum(door.is_open("10.0.0.1", Key.create()) for _ in range(int(BURST_S) + 10))
    assert let_in == BURST_S
    assert not door.is_open("10.0.0.1")
    assert door.is_open("10.0.0.1", A)
    assert door.is_open("10.0.0.2")


def test_the_runs_own_are_not_counted() -> None:
    door = Door(1.0, {TRAINER.address})
    assert all(door.is_open("10.0.0.1", TRAINER) for _ in range(100))


def test_a_thousand_nodes_behind_one_router_join_at_once() -> None:
    door = Door(DEFAULT, set())
    assert all(door.is_open("10.0.0.1") for _ in range(2 * 1000))  # the run card, and joining


def test_a_node_that_works_as_fast_as_it_can_is_never_refused() -> None:
    door = Door(DEFAULT, {A.address})
    for _ in range(3000):  # fifty requests per second for a minute: none answers faster
        door.now += 0.02
        assert door.is_open("10.0.0.1", A)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("somewhere", "somewhere"),
    ],
)
def test_who_has_many_addresses_of_one_network_is_one(host: str, network: str) -> None:
    assert network_of({"client": (host, 1)}) == network


def test_a_connection_without_an_address_is_counted_too() -> None:
    assert network_of({"client": None}) == "unknown"


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"requests_per_s": 1}) as world:
        world.announce()
        yield world


def test_a_node_that_floods_is_told_to_wait_and_the_others_work_on(strict: World) -> None:
    lease = strict.take("b")
    strict.store(A)
    answers = [strict.request(A, "POST", "/v1/heartbeats", {}) for _ in range(MANY)]
    assert answers[0].status_code == 200
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"] == "too-often"
    assert f"{A.address}: more than 1 requests per second" in refused.json()["reason"]
    strict.hand_in("b", lease)
    assert strict.trainer.count(lease.step).seen == 2


def test_a_stranger_who_floods_with_anything_is_told_to_wait_and_the_nodes_work_on(strict: World) -> None:
    lease = strict.take("a")
    for target in ("/v1/card", "/v1/none", "/v1/leases"):
        assert 429 in {strict.send("GET", target, b"", {}).status_code for _ in range(MANY)}
    # A token becomes whole each second: the first of many strangers may get it.
    strangers = [key_of(f"stranger-{n}") for n in range(MANY)]
    assert 429 in {strict.request(key, "POST", "/v1/nodes", {"role": "worker"}).status_code for key in strangers}
    strict.hand_in("a", lease)
    assert strict.request(A, "POST", "/v1/heartbeats", {}).status_code == 200


def test_a_client_that_was_refused_goes_on_by_itself(strict: World) -> None:
    waited: list[str] = []
    link = strict.link(A, on_wait=lambda what, _left: waited.append(what))
    link.join("worker")
    while not waited:
        link.heartbeat()
    assert "requests per second; wait a second" in waited[0]


def test_who_was_a_node_before_a_restart_is_one_after_it(strict: World) -> None:
    strict.store(A)
    strict.stop()
    strict.start()
    while strict.send("GET", "/v1/card", b"", {}).status_code == 200:
        pass
    assert strict.request(A, "POST", "/v1/heartbeats", {}).status_code == 200
