"""Whatever is done to a ledger's file, it is found, and the first entry that is not good is named."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.crypto.keys import Key
from shoal.errors import LedgerError
from shoal.ledger.acts import Challenge, Fund, Head, Register, Rule, Unbond
from shoal.ledger.chain import TamperedError, find_fork, verify
from shoal.ledger.entry import Entry, Statement
from shoal.ledger.export import export, read_file, verify_file
from shoal.ledger.store import SqliteLedger
from tests.support.ledgers import (
    ARBITER,
    COORDINATOR,
    EVIDENCE,
    NODES,
    RUN,
    STRANGER,
    VALIDATORS,
    Court,
    leaf,
    sqlite_ledger,
)


def fill(ledger: SqliteLedger) -> None:
    """A history in which every kind of entry occurs, and validators sign heads."""
    court = Court(ledger)
    court.begin()
    batch = court.judged([leaf(0), leaf(1, NODES[1])], "ar")
    ledger.enter(VALIDATORS[0], ledger.head)
    ledger.enter(NODES[1], Challenge(batch=batch, index=1, claim="a", evidence=EVIDENCE))
    ledger.enter(ARBITER, Rule(batch=batch, index=1, challenger=NODES[1].address, upheld=True))
    ledger.enter(NODES[0], Unbond(id="out", amount=10))
    ledger.enter(VALIDATORS[1], ledger.head)
    court.judged([leaf(2)], "v")
    ledger.enter(VALIDATORS[2], ledger.head)
    ledger.enter(COORDINATOR, Register(node=NODES[2].address))


@lru_cache(maxsize=1)
def good_lines() -> tuple[str, ...]:
    with TemporaryDirectory() as scratch:
        ledger = sqlite_ledger(Path(scratch))
        fill(ledger)
        ledger.close()
        target = Path(scratch) / "x.jsonl"
        export(read_file(Path(scratch) / "ledger.db"), target)
        return tuple(target.read_text().splitlines())


def first_bad(lines: list[str]) -> int:
    """The entry that is named; the test fails if the file is found good."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.jsonl"
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(TamperedError) as caught:
            verify_file(path)
        assert f"entry {caught.value.number}:" in str(caught.value)
        return caught.value.number


INDEX = st.integers(0, len(good_lines()) - 2)
"""Any entry; the line after the last of them closes the file."""


def test_the_file_verifies_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(good_lines()) + "\n")
    history = verify_file(path, COORDINATOR.address)
    assert history.number == len(good_lines()) - 2
    assert set(history.cosigned) == {key.address for key in VALIDATORS}


@given(INDEX, st.integers(0, 1 << 16), st.sampled_from('0123456789abcdefxyz{}[]",: \n\u00e9'))
def test_any_character_changed_is_found(index: int, place: int, character: str) -> None:
    lines = list(good_lines())
    at = place % len(lines[index])
    assume(lines[index][at] != character)
    lines[index] = lines[index][:at] + character + lines[index][at + 1 :]
    assert first_bad(lines) == index


@given(INDEX, st.integers(1, 5))
def test_any_entries_removed_are_found(index: int, count: int) -> None:
    lines = list(good_lines())
    last = len(lines) - 1
    del lines[index : min(last, index + count)]
    assert first_bad(lines) == index


@given(INDEX, INDEX)
def test_any_entry_inserted_is_found(source: int, index: int) -> None:
    lines = list(good_lines())
    lines.insert(index, lines[source])
    assert first_bad(lines) == (index + 1 if source == index else index)


@given(INDEX, INDEX)
def test_any_reordering_is_found(one: int, other: int) -> None:
    assume(one != other)
    lines = list(good_lines())
    lines[one], lines[other] = lines[other], lines[one]
    assert first_bad(lines) == min(one, other)


@given(INDEX)
def test_a_swapped_head_is_found(index: int) -> None:
    entry = Entry.from_line(good_lines()[index])
    last = len(good_lines()) - 2
    assume(index != last)
    for head, count in ((entry.hash, last + 1), (entry.hash, index + 1)):
        closing_line = f'{{"entries":{count},"format":2,"head":"{head}"}}'
        assert first_bad([*good_lines()[:-1], closing_line]) in (index + 1, last)


def reseal(entries: list[Entry], start: int, key: Key) -> list[Entry]:
    """The entries from `start` on, linked and sealed again."""
    done = entries[:start]
    for entry in entries[start:]:
        done.append(Entry.after(key, done[-1] if done else None, entry.statement, entry.time))
    return done


def entries_of(lines: tuple[str, ...]) -> list[Entry]:
    return [Entry.from_line(line) for line in lines[:-1]]


@given(INDEX, st.sampled_from(["remove", "swap", "forge"]))
def test_a_stranger_who_links_and_seals_anew_is_found_at_the_first_entry_it_touched(index: int, how: str) -> None:
    entries = entries_of(good_lines())
    assume(0 < index < len(entries) - 1)
    if how == "remove":
        del entries[index]
    elif how == "swap":
        entries[index], entries[index + 1] = entries[index + 1], entries[index]
    else:
        act = Fund(id="forged", amount=10**9)
        said = Statement.sign(STRANGER, RUN, entries[0].hash, act).model_copy(update={"author": COORDINATOR.address})
        entries.insert(index, Entry.after(STRANGER, entries[index - 1], said, entries[index].time))
    with pytest.raises(TamperedError) as caught:
        verify(reseal(entries, index, STRANGER))
    assert caught.value.number == index


@given(INDEX)
def test_the_coordinator_itself_cannot_rewrite_what_validators_signed(index: int) -> None:
    entries = entries_of(good_lines())
    signed = [entry.number for entry in entries if isinstance(entry.statement.act, Head)]
    heads = [entry.statement.act for entry in entries if isinstance(entry.statement.act, Head)]
    newest = max(head.number for head in heads)
    assume(0 < index <= newest)
    said = Statement.sign(COORDINATOR, RUN, entries[0].hash, Fund(id="more", amount=1))
    slipped_in = Entry.after(COORDINATOR, entries[index - 1], said, entries[index - 1].time)
    rewritten = reseal([*entries[:index], slipped_in, *entries[index:]], index + 1, COORDINATOR)
    with pytest.raises(TamperedError, match="rewritten after it had been signed") as caught:
        verify(rewritten)
    first_after = min(number for number, head in zip(signed, heads, strict=True) if head.number >= index)
    assert caught.value.number == first_after + 1


def test_a_fork_is_shown_with_both_seals() -> None:
    entries = entries_of(good_lines())
    said = Statement.sign(COORDINATOR, RUN, entries[0].hash, Fund(id="other", amount=1))
    fork = [*entries[:-1], Entry.after(COORDINATOR, entries[-2], said, entries[-1].time)]
    verify(fork)
    found = find_fork(entries, fork)
    assert found is not None
    assert found.one.number == len(entries) - 1
    assert entries[-1].seal in str(found)
    assert fork[-1].seal in str(found)
    assert find_fork(entries, entries[:-3]) is None


def test_a_head_that_a_validator_kept_shows_what_was_cut_off_or_changed(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    fill(ledger)
    path = tmp_path / "ledger.db"
    kept = Statement.sign(VALIDATORS[0], RUN, ledger.name, ledger.head)
    ledger.close()
    verify_file(path, heads=[kept])
    entries = list(read_file(path))
    export(entries[:-2], tmp_path / "cut.jsonl")
    verify_file(tmp_path / "cut.jsonl")
    with pytest.raises(TamperedError, match="is missing") as caught:
        verify_file(tmp_path / "cut.jsonl", heads=[kept])
    assert caught.value.number == len(entries) - 2
    said = Statement.sign(COORDINATOR, RUN, entries[0].hash, Fund(id="other", amount=1))
    export([*entries[:-1], Entry.after(COORDINATOR, entries[-2], said, 10**12)], tmp_path / "fork.jsonl")
    with pytest.raises(TamperedError, match=kept.signature):
        verify_file(tmp_path / "fork.jsonl", heads=[kept])


def test_the_database_itself_lets_nothing_be_changed_and_shows_what_was(tmp_path: Path) -> None:
    ledger = sqlite_ledger(tmp_path)
    fill(ledger)
    ledger.close()
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        for change in ("UPDATE entries SET line = '' WHERE number = 3", "DELETE FROM entries WHERE number = 3"):
            with pytest.raises(sqlite3.IntegrityError):
                database.execute(change)
        database.executescript("DROP TRIGGER no_removal; DELETE FROM entries WHERE number = 3;")
    with pytest.raises(TamperedError) as caught:
        verify_file(path)
    assert caught.value.number == 3
    with pytest.raises(TamperedError):
        sqlite_ledger(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"SQLite format 3\0garbage", b"{}\n", b"\xff\xfe\n"])
def test_what_is_no_ledger_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        verify_file(path)


def test_the_ledger_of_another_coordinator_or_run_is_not_taken_for_ours(tmp_path: Path) -> None:
    sqlite_ledger(tmp_path).close()
    check: Callable[[], object]
    for check in (
        lambda: verify_file(tmp_path / "ledger.db", STRANGER.address),
        lambda: SqliteLedger.open(tmp_path / "ledger.db", STRANGER, RUN, sqlite_ledger(tmp_path / "b").state.terms),
        lambda: SqliteLedger.open(tmp_path / "ledger.db", COORDINATOR, "x", sqlite_ledger(tmp_path / "c").state.terms),
    ):
        with pytest.raises(LedgerError):
            check()
