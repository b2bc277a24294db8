"""The tree of page "swarm": who fetches from whom, by name and amount, and nothing that says where anybody is."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert

from shoal.coordinator.db.schema import metadata, nodes
from shoal.page.source import RunFiles
from shoal.page.weights_tree import MAX_CHILDREN, below_origin, children_of, weights_tree
from shoal.shardcast.serve.child_relays import Children, children_file
from shoal.telemetry.status import RoleStatus
from tests.support.large_run import address, node

OWN, OTHER, FAR = (f"https://203.0.113.{number}:9000" for number in (1, 2, 3))


def served(store: Path, *fetched: tuple[str, str, int]) -> None:
    """Writes what a server writes of those that fetched from it: name, URL and bytes of each."""
    children = Children(store)
    for number, (name, url, count) in enumerate(fetched):
        children.heard(f"198.51.100.{number}", name, url).sent["7-full-ab"] = count
    children.save()


@pytest.fixture
def db(tmp_path: Path) -> Connection:
    """Three relays, of which the run's own joined first."""
    connection = create_engine(f"sqlite:///{tmp_path / 'state.db'}").connect()
    metadata.create_all(connection)
    for number, url in enumerate((OWN, OTHER, FAR), 1):
        row = {**node(number), "role": "relay", "name": f"relay-{number}", "url": url, "joined": float(number)}
        connection.execute(insert(nodes).values(row))
    return connection


def test_a_relay_stands_below_the_server_that_sent_it_most_and_a_worker_below_its_relay(
    db: Connection, tmp_path: Path
) -> None:
    served(tmp_path / "origin", ("relay", f"{OWN}#{address(1)}", 100), ("relay", OTHER, 10), ("evaluator", "", 5))
    served(tmp_path / "relay", ("relay", OTHER, 90), ("worker-0", "", 3_000_000), ("worker-1", "", 4_000_000))
    own, far, evaluator = below_origin(db, tmp_path)
    assert [own["name"], far["name"], evaluator["name"]] == ["relay-1", "relay-3", "evaluator"]
    below = own["below"]
    assert isinstance(below, list)
    assert [one["name"] for one in below] == ["relay-2", "worker-1", "worker-0"]
    assert below[1]["note"] == "fetched 4.0 MB here"


def test_no_network_address_no_url_and_no_hidden_role_is_in_the_tree(db: Connection, tmp_path: Path) -> None:
    served(tmp_path / "origin", ("relay", OWN, 100), ("planter", "", 5), ("at 198.51.100.7 <b>", "", 6))
    served(tmp_path / "relay", ("worker-0", "", 7))
    text = json.dumps(below_origin(db, tmp_path))
    assert "198.51.100" not in text
    assert "203.0.113" not in text
    assert "planter" not in text
    assert "[address]" in text


def test_of_many_that_fetch_the_largest_are_named_and_the_others_counted(db: Connection, tmp_path: Path) -> None:
    served(tmp_path / "origin", *((f"worker-{number}", "", number + 1) for number in range(100)))
    named = below_origin(db, tmp_path)[3:]
    assert named[0]["name"] == "worker-99"
    assert (len(named), named[-1]["note"]) == (MAX_CHILDREN + 1, "and 68 more")


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"name": "a"}]', '[{"name": "a", "url": "", "sent": 3}]', "null"])
def test_a_file_that_is_damaged_or_of_another_form_is_as_good_as_none(
    text: str, db: Connection, tmp_path: Path
) -> None:
    children_file(tmp_path / "origin").write_text(text)
    assert children_of(tmp_path / "origin") == []
    assert len(below_origin(db, tmp_path)) == 3


def test_before_the_first_step_a_trainer_has_the_version_that_its_origin_offers(db: Connection, tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    files = RunFiles.open(tmp_path)
    files.statuses = [RoleStatus("origin", 1, "working", "serving version 0, 0 MB so far", "", 0.0, None, 0.0)]
    assert weights_tree(db, files)["note"] == "version 0"
