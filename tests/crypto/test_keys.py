"""Keys and signatures, against the wallet library everybody uses."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from hypothesis import given
from hypothesis import strategies as st

from shoal.crypto.keys import HALF_ORDER, Key, checked_address, checksummed, signer_of
from shoal.errors import IdentityError

ORDER = 2 * HALF_ORDER + 1
SECRETS = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


@given(SECRETS, st.binary(max_size=300))
def test_a_signature_is_the_one_that_eth_account_makes(secret: bytes, message: bytes) -> None:
    ours = Key(secret)
    theirs = Account.from_key(secret)
    assert checksummed(ours.address) == theirs.address
    signed = ours.sign(message)
    assert signed == "0x" + theirs.sign_message(encode_defunct(message)).signature.hex().removeprefix("0x")
    assert signer_of(message, signed) == ours.address


@given(st.binary(max_size=50), st.integers(0, 64 * 8))
def test_a_changed_bit_never_gives_the_signers_address(message: bytes, bit: int) -> None:
    key = Key(b"\x07" * 32)
    raw = bytearray(bytes.fromhex(key.sign(message)[2:]))
    raw[bit // 8] ^= 1 << bit % 8
    with suppress(IdentityError):
        assert signer_of(message, raw.hex()) != key.address


def test_the_twin_of_a_signature_is_refused() -> None:
    key = Key(b"\x07" * 32)
    raw = bytes.fromhex(key.sign(b"hello")[2:])
    twin = raw[:32] + (ORDER - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big") + bytes([55 - raw[64]])
    with pytest.raises(IdentityError, match="secp256k1"):
        signer_of(b"hello", twin.hex())


@pytest.mark.parametrize("signature", ["", "0x", "zz", "00" * 65, "ff" * 65, "0x" + "11" * 64])
def test_what_is_no_signature_is_an_identity_error(signature: str) -> None:
    with pytest.raises(IdentityError, match="signature"):
        signer_of(b"hello", signature)


def test_a_key_file_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.key"
    first = Key.load_or_create(path)
    assert Key.load_or_create(path).address == first.address
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*path.parent.iterdir()] == [path]
    assert "0x" + Key.load(path)._key.secret.hex() not in repr(first)


def test_a_key_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    synced: list[bool] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        synced.append(path.exists() or os.fstat(descriptor).st_size != 67)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    Key.load_or_create(path)
    assert synced == [False]


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    Key.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(IdentityError, match=r"mode 644.*chmod 600"):
        Key.load(path)


@pytest.mark.parametrize("text", ["", "hello", "0x00", "00" * 32, "ff" * 32])
def test_a_key_file_with_something_else_in_it_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=r"node\.key"):
        Key.load(path)


def test_a_directory_or_a_pipe_is_not_a_key_and_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, what in (("folder", "Is a directory"), ("pipe", "not a regular file")):
        with pytest.raises(IdentityError) as refused:
            Key.load_or_create(tmp_path / name)
        assert str(refused.value) == f"key {tmp_path / name}: {what}; give the file of a key"


def test_an_address_with_a_mistyped_letter_is_found_by_its_checksum() -> None:
    address = Key(b"\x07" * 32).address
    assert checked_address(address) == checked_address(checksummed(address)) == address
    shown = checksummed(address)
    wrong = shown[:-1] + ("0" if shown[-1] != "0" else "1")
    with pytest.raises(IdentityError, match="checksum"):
        checked_address(wrong)
    with pytest.raises(IdentityError, match="40 hexadecimal"):
        checked_address("0x12")
