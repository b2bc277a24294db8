"""Tables of weights at the coordinator: published once, signed, and believed from nobody else."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.client.announce import AnnouncedChannel
from shoal.client.client import CoordinatorClient
from shoal.client.rollout_store import SwarmStore
from shoal.crypto.keys import Key
from shoal.errors import RolloutError, SwarmError, WaitError
from shoal.protocol.refusal import Refusal
from shoal.protocol.task_weights import SignedTable
from shoal.protocol.version_directory import TABLE, DirectoryChannel
from shoal.tasks.difficulty import MAX_BINS, Part, Table
from tests.support.coordinator_in_process import COORDINATOR, TRAINER, World, key_of, world_at
from tests.support.servers.http_answers import answering
from tests.support.submissions import LIMITS, ROOT, make_lease

WEIGHTED: dict[str, Any] = {"sampler": {"kind": "difficulty"}}
OTHER_ROOT = "cd" * 32


def table(*weights: int) -> Table:
    return Table(parts=(Part(name="words", share=1, weights=weights),))


def announce(world: World, number: int, weights: Table | None, root: str = ROOT) -> None:
    world.trainer._link.announce(number, root, weights)


@pytest.fixture
def weighted(tmp_path: Path, database_url: str) -> Iterator[World]:
    with world_at(tmp_path, database_url, **WEIGHTED) as world:
        yield world


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", **WEIGHTED) as world:
        yield world


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Of which no version is announced, for tests that change nothing."""
    path = tmp_path_factory.mktemp("empty")
    with world_at(path, f"sqlite:///{path / 'state.db'}", **WEIGHTED) as world:
        _ = world.trainer
        yield world


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With two versions, for tests that change nothing."""
    path = tmp_path_factory.mktemp("two")
    with world_at(path, f"sqlite:///{path / 'state.db'}", **WEIGHTED) as world:
        for number in range(2):
            announce(world, number, table(1, 2))
        yield world


def test_a_lease_draws_by_the_table_of_its_oldest_version_whichever_its_holder_has(weighted: World) -> None:
    for number in range(5):
        announce(weighted, number, table(number + 1, 9))
    lease = weighted.take("a", version=4)
    assert (lease.step, lease.oldest) == (4, 2)
    for store in (weighted.store(key_of("a")), weighted.validator):
        assert store.table(lease) == table(3, 9)
    signed = weighted.link(key_of("stranger")).table(2)
    assert (signed.run, signed.version, signed.root) == ("test", 2, ROOT)


def test_a_table_stays_what_it_was_until_its_version_is_taken_back(weighted: World) -> None:
    for number in range(3):
        announce(weighted, number, table(1, 2))
    announce(weighted, 2, table(1, 2))
    with pytest.raises(RolloutError, match=r"version 2: its table of weights is .*; retract it first"):
        announce(weighted, 2, table(2, 1))
    assert weighted.link(TRAINER).table(2).table == table(1, 2)
    assert weighted.trainer._link.retract(after=1) == [2]
    with pytest.raises(Refusal, match="version 2: there is no table of weights"):
        weighted.link(TRAINER).table(2)
    announce(weighted, 2, table(2, 1), OTHER_ROOT)
    found = weighted.link(TRAINER).table(2)
    assert (found.table, found.root) == (table(2, 1), OTHER_ROOT)


def test_tables_are_there_after_a_restart(weighted: World) -> None:
    announce(weighted, 0, table(1, 2))
    before = weighted.link(TRAINER).table(0)
    weighted.stop()
    weighted.start()
    assert weighted.link(TRAINER).table(0) == before
    with pytest.raises(RolloutError, match="retract it first"):
        announce(weighted, 0, table(2, 1))


def test_who_has_the_table_of_a_version_that_was_taken_back_gets_the_new_one_with_its_next_lease(small: World) -> None:
    for number in range(4):
        announce(small, number, table(number + 1))
    before = small.take("a", version=3)
    store = small.store(key_of("a"))
    assert store.table(before) == table(2)
    small.trainer._link.retract(after=0)
    with pytest.raises(RolloutError, match="version 1: there is no table of weights"):
        SwarmStore(small.link(key_of("b")), Path("unused"), LIMITS, lambda _: ROOT).table(before)
    for number in range(1, 4):
        announce(small, number, table(number + 10), OTHER_ROOT)
    with pytest.raises(RolloutError, match=r"version 1 is cdcdcdcdcdcd by now, and was abababababab"):
        SwarmStore(small.link(key_of("b")), Path("unused"), LIMITS, lambda _: ROOT).table(before)
    again = small.take("a", version=3)
    assert again == before
    assert store.table(again) == table(11)
    judge = SwarmStore(small.link(key_of("judge")), Path("unused"), LIMITS, lambda _: OTHER_ROOT)
    assert judge.table(again) == table(11)


def test_a_table_that_is_at_hand_is_not_asked_for_again(small: World) -> None:
    announce(small, 0, table(1, 2))
    lease = small.take("a")
    store = small.store(key_of("a"))
    assert store.table(lease) == table(1, 2)
    small.stop()
    assert store.table(lease) == table(1, 2)


def test_of_old_versions_the_hash_alone_is_kept(small: World) -> None:
    keep = small.config.keep.versions
    for number in range(keep + 3):
        announce(small, number, table(number + 1))
    link = small.link(TRAINER)
    for number in range(3):
        with pytest.raises(Refusal, match=f"version {number}: there is no table"):
            link.table(number)
        with pytest.raises(RolloutError, match="retract it first"):
            announce(small, number, table(999))
        announce(small, number, table(number + 1))
    assert [link.table(number).table for number in range(3, keep + 3)] == [table(n + 1) for n in range(3, keep + 3)]
    # A trainer that goes back further than that says all it still has again.
    link.join("trainer")
    link.retract(after=3)
    announce(small, 2, table(3))
    assert link.table(2).table == table(3)


def test_with_every_version_comes_a_table_or_with_none(small: World, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"version 0: this run draws tasks by a table of weights, which must come with"):
        announce(small, 0, None)
    assert small.link(TRAINER).get("/v1/versions") == {"newest": None}
    with world_at(tmp_path / "alike", f"sqlite:///{tmp_path / 'alike.db'}") as alike:
        with pytest.raises(Refusal, match=r"version 0: this run draws tasks alike, without a table"):
            announce(alike, 0, table(1))
        announce(alike, 0, None)
        assert alike.store(key_of("a")).table(make_lease()) is None
        assert alike.request(key_of("a"), "GET", "/v1/tables/0").status_code == 404


def test_nobody_but_the_trainer_publishes_one(small: World) -> None:
    store = small.store(key_of("a"))
    with pytest.raises(Refusal, match="trainer"):
        store._link.announce(0, ROOT, table(1))


@pytest.mark.parametrize(
    ("rubbish", "status"),
    [
        (1, 422),
        ({}, 422),
        ({"parts": []}, 422),
        ({"parts": [{"name": "words", "share": 1, "weights": [0]}]}, 422),
        ({"parts": [{"name": "words", "share": 1, "weights": [1.5]}]}, 422),
        ({"parts": [{"name": "words", "share": 1, "weights": [1] * (MAX_BINS + 1)}]}, 422),
        ({"parts": [{"name": f"{n}" * 300, "share": 1, "weights": [1]} for n in range(180)]}, 413),
        ({"parts": [{"name": f"{n}" * 300, "share": 1, "weights": [1]} for n in range(90)]}, 422),
        ({"parts": [{"name": "words", "share": 1, "weights": [1] * 40_000}]}, 413),
    ],
)
def test_rubbish_in_the_place_of_a_table_changes_nothing(empty: World, rubbish: Any, status: int) -> None:
    answer = empty.request(TRAINER, "PUT", "/v1/versions/0", {"root": ROOT, "table": rubbish})
    assert answer.status_code == status
    assert empty.link(TRAINER).get("/v1/versions") == {"newest": None}


@contextmanager
def between(world: World, change: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """Somebody on the way, who changes every table that passes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with httpx2.Client(trust_env=False) as client:
                answer = client.get(world.url + self.path)
            data = answer.content
            if self.path.startswith("/v1/tables/"):
                found = change(answer.json())
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with answering(Handler) as url:
        yield url


def by_another(tree: dict[str, Any]) -> bytes:
    return SignedTable.sign("test", 1, ROOT, table(7, 7), Key(b"\x09" * 32)).model_dump_json().encode()


def of_another_run(tree: dict[str, Any]) -> bytes:
    return SignedTable.sign("other", 1, ROOT, table(7, 7), COORDINATOR).model_dump_json().encode()


def of_another_version(tree: dict[str, Any]) -> bytes:
    return SignedTable.sign("test", 0, ROOT, table(7, 7), COORDINATOR).model_dump_json().encode()


def test_a_table_that_nobody_changed_on_its_way_is_believed(two: World) -> None:
    with between(two, lambda tree: tree) as url, CoordinatorClient(url, key_of("a"), wait_s=1.0) as link:
        assert SwarmStore(link, Path("unused"), LIMITS, lambda _: ROOT).table(make_lease(oldest=1)) == table(1, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree | {"table": {"parts": [{"name": "words", "share": 1, "weights": [2, 1]}]}}, "signed by 0x"),
        (lambda tree: tree | {"root": OTHER_ROOT}, "signed by 0x"),
        (lambda tree: tree | {"signature": "0x" + "11" * 65}, "sign"),
        (lambda tree: tree | {"signature": ""}, "sign"),
        (by_another, "signed by 0x"),
        (of_another_run, "came with that of version 1 of run other"),
        (of_another_version, "came with that of version 0 of run test"),
        (lambda tree: tree | {"table": {"parts": []}}, "its answer to /v1/tables/1 is invalid"),
        (lambda tree: tree | {"table": {"parts": [{"name": "w", "share": 1, "weights": [1] * 5000}]}}, "is invalid"),
        (lambda tree: [], "is invalid"),
        (lambda tree: b"x" * (9 << 20), "an answer of more than"),
        (lambda tree: b"{", "which is not valid JSON"),
    ],
)
def test_a_table_that_somebody_on_the_way_changed_is_not_believed(
    two: World, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with between(two, change) as url, CoordinatorClient(url, key_of("a"), wait_s=1.0) as link:
        store = SwarmStore(link, Path("unused"), LIMITS, lambda _: ROOT)
        with pytest.raises((SwarmError, WaitError), match=said):
            store.table(make_lease(oldest=1))


def test_the_trainer_announces_the_table_that_lies_with_a_version_and_again_after_a_kill(
    small: World, tmp_path: Path
) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=5)
    link = small.link(TRAINER)
    link.join("trainer")
    both = AnnouncedChannel(channel, link)
    for number in range(3):
        with (channel if number == 2 else both).publish(number) as staging:  # the last one: killed before it was said
            (staging / "model.safetensors").write_text(str(number))
            (staging / TABLE).write_text(table(number + 1).to_json())
    assert link.table(1).table == table(2)
    assert both.retract(after=2) == []
    assert link.table(2).table == table(3)
    assert both.retract(after=1) == [2]
    with pytest.raises(Refusal, match="version 2: there is no table"):
        link.table(2)
    assert channel.table(2) is None


def test_a_version_whose_table_was_changed_is_damaged_and_not_announced(small: World, tmp_path: Path) -> None:
    channel = DirectoryChannel(tmp_path / "weights", keep=5)
    with channel.publish(0) as staging:
        (staging / "model.safetensors").write_text("0")
        (staging / TABLE).write_text(table(1, 2).to_json())
    assert channel.is_whole(0)
    assert channel.table(0) == table(1, 2)
    (tmp_path / "weights" / "v000000" / TABLE).write_text(table(2, 1).to_json())
    assert not channel.is_whole(0)
    assert channel.table(0) is None
    link = small.link(TRAINER)
    link.join("trainer")
    with pytest.raises(Refusal, match="which must come with it"):
        AnnouncedChannel(channel, link).retract(after=0)
