"""Lists of runs: what a coordinator or publisher did not sign, what is old or hostile is never shown."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.crypto.keys import Key
from shoal.errors import ConfigError, SwarmError
from shoal.protocol.run_list import (
    DAY_S,
    MAX_LIST_BYTES,
    RunEntry,
    RunList,
    SignedEntry,
    SignedList,
    read_entry,
    read_list,
    sign_entry,
    sign_list,
)

NOW = 1_800_000_000
PUBLISHER, A, B = (Key(bytes([n]) * 32) for n in (1, 2, 3))


def entry(key: Key = A, **changes: Any) -> RunEntry:
    usual: dict[str, Any] = {
        "run": "words",
        "coordinator": key.address,
        "url": "https://host.example:7000",
        "model": "tiny",
        "nodes": 3,
        "version": 4,
        "steps": 20,
        "updated": NOW - 60,
        "expires": NOW + DAY_S,
    }
    return RunEntry(**usual | changes)


def signed(key: Key = A, **changes: Any) -> SignedEntry:
    return sign_entry(entry(key, **changes), key)


def listed(*entries: SignedEntry, now: int = NOW) -> bytes:
    return json.dumps(sign_list(entries, PUBLISHER, now, 7).model_dump(mode="json")).encode()


def forced(*trees: Any) -> bytes:
    """A list whose publisher has signed whatever it was given."""
    made = RunList(publisher=PUBLISHER.address, updated=NOW, expires=NOW + DAY_S, runs=list(trees))
    whole = SignedList(list=made, signature=PUBLISHER.sign(made.message()))
    return json.dumps(whole.model_dump(mode="json")).encode()


def tree_of(found: SignedEntry) -> dict[str, Any]:
    return found.model_dump(mode="json")


def test_a_list_gives_the_newest_entry_of_each_run() -> None:
    old, new, other = signed(nodes=1, updated=NOW - 900), signed(nodes=2), signed(B, run="sums")
    found = read_list(listed(old, new, other), "list", NOW, PUBLISHER.address)
    assert [(one.entry.run, one.entry.nodes) for one in found.runs] == [("sums", 3), ("words", 2)]
    forged = read_list(forced(tree_of(new), tree_of(old), tree_of(other)), "list", NOW, None)
    assert [one.entry.nodes for one in forged.runs] == [3, 2]
    assert forged.left_out == {"duplicate": 1}


def test_two_runs_of_one_name_are_two_runs() -> None:
    found = read_list(listed(signed(A), signed(B)), "list", NOW, None)
    assert {one.entry.coordinator for one in found.runs} == {A.address, B.address}


@pytest.mark.parametrize(
    "change", [("list", "updated", NOW + 1), ("list", "publisher", A.address), ("list", "runs", [])]
)
def test_a_list_that_was_changed_is_refused(change: tuple[str, str, Any]) -> None:
    tree = json.loads(listed(signed()))
    table, name, value = change
    tree[table][name] = value
    with pytest.raises(SwarmError, match=r"signed it|is not a list"):
        read_list(json.dumps(tree).encode(), "list", NOW, None)


def test_a_list_of_another_publisher_or_an_old_one_is_refused() -> None:
    with pytest.raises(SwarmError, match="expected"):
        read_list(listed(signed()), "list", NOW, A.address)
    with pytest.raises(SwarmError, match=r"expired 1\.0 days ago"):
        read_list(listed(signed()), "list", NOW + 8 * DAY_S, None)
    with pytest.raises(SwarmError, match="in the future"):
        read_list(listed(signed(), now=NOW), "list", NOW - DAY_S, None)


def test_a_publisher_cannot_change_an_entry_nor_add_one_of_its_own_making() -> None:
    changed = copy.deepcopy(tree_of(signed()))
    changed["entry"]["url"] = "https://evil.example:7000"
    stolen = tree_of(signed()) | {"signature": PUBLISHER.sign(entry().message())}
    broken = tree_of(signed()) | {"signature": "0x00"}
    found = read_list(forced(changed, stolen, broken, tree_of(signed(B))), "list", NOW, None)
    assert [one.entry.coordinator for one in found.runs] == [B.address]
    assert found.left_out == {"forged": 3}


def test_an_expired_entry_is_left_out_and_dropped_when_the_list_is_made_again() -> None:
    old = signed(expires=NOW - 1)
    found = read_list(forced(tree_of(old), tree_of(signed(B))), "list", NOW, None)
    assert (len(found.runs), found.left_out) == (1, {"expired": 1})
    assert json.loads(listed(old, signed(B)))["list"]["runs"] == [tree_of(signed(B))]


@pytest.mark.parametrize(
    "change",
    [
        {"run": "\x1b]0;owned\x07"},
        {"model": "tiny\x1b[2J"},
        {"about": "two\nlines"},
        {"about": "\u202eturned around"},
        {"about": "x" * 10_000},
        {"needs": ["\x9b31m"]},
        {"needs": ["x"] * 100},
        {"url": "https://host/$(reboot)"},
        {"url": "javascript:alert(1)"},
        {"url": ""},
        {"nodes": -1},
        {"nodes": "many"},
        {"nodes": True},
        {"expires": NOW + 400 * DAY_S},
        {"updated": NOW + 5 * DAY_S, "expires": NOW + 6 * DAY_S},
        {"extra": 1},
        {"schema_version": 2},
    ],
)
def test_hostile_and_oversized_entries_are_left_out_even_if_both_have_signed_them(change: dict[str, Any]) -> None:
    from shoal.crypto.signed import canonical, message
    from shoal.protocol.run_list import ENTRY_DOMAIN

    tree = entry().model_dump(mode="json") | change
    hostile = {"entry": tree, "signature": A.sign(message(ENTRY_DOMAIN, canonical(tree)))}
    found = read_list(forced(hostile, tree_of(signed(B))), "list", NOW, None)
    assert [one.entry.coordinator for one in found.runs] == [B.address]
    assert found.left_out == {"malformed": 1}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"[" * 100_000, b"null", b'{"list": {}, "signature": "x"}', b"\xff"]
)
def test_what_is_not_a_list_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(SwarmError, match="is not a list of runs") as refused:
        read_list(data, "list", NOW, None)
    assert str(refused.value).isprintable()


def test_a_list_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(SwarmError, match="more than"):
        read_list(b" " * (MAX_LIST_BYTES + 1), "list", NOW, None)


def test_an_entry_alone_is_checked_too() -> None:
    data = json.dumps(tree_of(signed())).encode()
    assert read_entry(data, "entry", NOW) == signed()
    with pytest.raises(SwarmError, match="forged"):
        read_entry(data.replace(b"words", b"wards"), "entry", NOW)
    with pytest.raises(SwarmError, match="expired"):
        read_entry(data, "entry", NOW + 2 * DAY_S)
    with pytest.raises(SwarmError, match="names"):
        sign_entry(entry(A), B)


def test_a_join_line_is_safe_to_paste() -> None:
    assert entry().join_line == f"shoal worker --join https://host.example:7000#{A.address}"
    assert entry(invite=True).join_line.endswith(f"{A.address}+INVITE")


def test_publishing_updates_a_list_in_place_and_only_that_of_the_same_key(tmp_path: Path) -> None:
    from shoal.client.run_directory import open_directory, publish, write_entry

    now = int(time.time())
    usual = {"updated": now, "expires": now + DAY_S}
    write_entry(signed(A, **usual), tmp_path / "a.json")
    write_entry(signed(B, **usual), tmp_path / "b.json")
    target = tmp_path / "runs.json"
    assert len(publish(target, [tmp_path / "a.json"], PUBLISHER, 7, []).runs) == 1
    assert len(publish(target, [tmp_path / "b.json"], PUBLISHER, 7, []).runs) == 2
    assert len(open_directory(f"{target}#{PUBLISHER.address}").runs) == 2
    with pytest.raises(SwarmError, match="expected"):
        publish(target, [], A, 7, [])
    assert [one.entry.coordinator for one in publish(target, [], PUBLISHER, 7, [A.address]).runs] == [B.address]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("https://[::1/x", "--directory https://[::1/x: Invalid IPv6 URL; give it as in https://HOST/runs.json"),
        ("ftp://x/y", "--directory ftp://x/y: scheme 'ftp' is unknown; give https or a file"),
    ],
)
def test_a_directory_that_no_list_can_be_at_is_refused_by_name(place: str, said: str) -> None:
    from shoal.client.run_directory import open_directory

    with pytest.raises(SwarmError) as refused:
        open_directory(place)
    assert str(refused.value) == said


def test_a_folder_is_not_a_list_and_is_called_what_it_is(tmp_path: Path) -> None:
    from shoal.client.run_directory import open_directory

    with pytest.raises(ConfigError) as refused:
        open_directory(str(tmp_path))
    assert str(refused.value) == f"{tmp_path}: cannot be read (Is a directory); give a list, or an entry, of runs"
