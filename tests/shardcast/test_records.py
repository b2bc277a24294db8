"""What the origin signs, and what passes for it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crypto.keys import Key
from shoal.errors import ShardcastError
from shoal.shardcast.format.records import (
    MIB,
    Closing,
    Head,
    Opening,
    Piece,
    check_line,
    check_whole,
    content_root,
    read_head,
    read_line,
    signed_head,
    signed_line,
)

KEY = Key(b"\x11" * 32)
OTHER = Key(b"\x12" * 32)
OPENING = Opening(run="test", number=3, kind="full", base=None, piece_size=MIB, time_ms=5, nonce="0" * 16)
HASHES = ["aa" * 32, "bb" * 32]
PIECES = {
    0: Piece(index=0, file="model.safetensors", offset=0, size=MIB, hash=HASHES[0]),
    1: Piece(index=1, file="model.safetensors", offset=MIB, size=7, hash=HASHES[1]),
}
FILES = (("model.safetensors", MIB + 7),)
CLOSING = Closing(
    pieces=2, files=FILES, content=FILES, root=content_root(3, MIB, {"model.safetensors": (MIB + 7, HASHES)})
)


@pytest.mark.parametrize("record", [OPENING, PIECES[0], CLOSING])
def test_a_line_comes_back_as_it_was_and_only_its_signer_passes(record: Opening | Piece | Closing) -> None:
    line = signed_line(record, OPENING.id, KEY)
    back, signature = read_line(line)
    assert back == record
    check_line(back, signature, OPENING.id, KEY.address)
    with pytest.raises(ShardcastError, match=f"signed by {KEY.address}, not by {OTHER.address}"):
        check_line(back, signature, OPENING.id, OTHER.address)


def test_a_piece_of_another_package_does_not_pass() -> None:
    record, signature = read_line(signed_line(PIECES[0], "00" * 32, KEY))
    with pytest.raises(ShardcastError, match="not by 0x"):
        check_line(record, signature, OPENING.id, KEY.address)


def test_a_piece_does_not_pass_under_another_place() -> None:
    _, signature = read_line(signed_line(PIECES[0], OPENING.id, KEY))
    with pytest.raises(ShardcastError, match="not by 0x"):
        check_line(PIECES[1], signature, OPENING.id, KEY.address)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    with pytest.raises(ShardcastError, match="manifest line"):
        read_line(data)
    with pytest.raises(ShardcastError, match="head"):
        read_head(data, KEY.address, None)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", ".hidden", "a/.git", "a\nb", "a b", "a/b/c/d/e", "x" * 201, "ä"],
)
def test_a_file_name_cannot_leave_its_package(name: str) -> None:
    line = json.dumps(["piece", {**PIECES[0].model_dump(), "file": name}, "0x00"]).encode()
    with pytest.raises(ShardcastError, match="manifest line"):
        read_line(line)


def test_a_head_is_its_runs_and_its_origins() -> None:
    data = signed_head(Head(run="test", sequence=4, time_ms=1, packages=()), KEY)
    assert read_head(data, KEY.address, "test").sequence == 4
    with pytest.raises(ShardcastError, match=r"run 'test', wanted 'other'"):
        read_head(data, KEY.address, "other")
    with pytest.raises(ShardcastError, match="not by 0x"):
        read_head(data, OTHER.address, "test")
    with pytest.raises(ShardcastError, match="not by 0x"):
        read_head(data.replace(b'"sequence":4', b'"sequence":5'), KEY.address, "test")


def test_pieces_that_do_not_make_up_the_files_are_refused() -> None:
    check_whole(OPENING, PIECES, CLOSING)
    with pytest.raises(ShardcastError, match="1 pieces, the closing says 2"):
        check_whole(OPENING, {0: PIECES[0]}, CLOSING)
    gap = {0: PIECES[0], 1: PIECES[1].model_copy(update={"offset": MIB + 1})}
    with pytest.raises(ShardcastError, match=f"not covered at byte {MIB}"):
        check_whole(OPENING, gap, CLOSING)
    swapped = {0: PIECES[0], 1: PIECES[1].model_copy(update={"hash": HASHES[0]})}
    with pytest.raises(ShardcastError, match="root"):
        check_whole(OPENING, swapped, CLOSING)


@given(st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(0, 9), st.lists(st.just("aa" * 32)))))
def test_a_root_depends_on_number_and_content_and_not_on_order(
    files: dict[str, tuple[int, list[str]]],
) -> None:
    turned = dict(reversed(files.items()))
    assert content_root(1, MIB, files) == content_root(1, MIB, turned)
    assert content_root(1, MIB, files) != content_root(2, MIB, files)
    assert content_root(1, MIB, files) != content_root(1, MIB, {**files, "z": (1, ["bb" * 32])})
