"""Claims about what is signed: one form in every language, which the RFC's own examples show."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import _written, canonical, check_signed, message
from shoal.errors import LedgerError
from shoal.protocol.lease import Lease
from shoal.protocol.signed_lease import SignedLease

KEY, OTHER = Key(b"\1" * 32), Key(b"\2" * 32)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


# RFC 8785, appendix B: the bits of a double, and its text.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_the_rfc(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text


def test_strings_and_the_order_of_names_are_those_of_the_rfc() -> None:
    # RFC 8785, sections 3.2.2 and 3.2.3.
    given = (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001], '
        '"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/", "literals": [null, true, false]}'
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(json.loads(given)) == expected
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    by_utf16 = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(names)))) == by_utf16


@given(VALUES)
def test_the_form_of_what_was_read_back_is_the_same(value: object) -> None:
    text = canonical(value)
    assert canonical(json.loads(text)) == text
    assert _written(value) == text  # with and without the encoder in C
    assert "\n" not in text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "nan: JSON has no number"),
        ([-math.inf], "-inf: JSON has no number"),
        ("\ud800", "surrogates not allowed"),
        ({"\udc00": 1}, "surrogates not allowed"),
        ({1: 2}, "names in JSON are strings"),
        (b"bytes", "bytes b'bytes': has no form"),
    ],
)
def test_what_has_no_form_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        canonical(value)


def test_a_lease_is_signed_in_bytes_that_any_language_can_make() -> None:
    lease = Lease("laptop", "0xab", 3, 1, 2, 8, 2**62 + 1, 1e9 + 0.5, "1/7")
    signed = SignedLease.sign(lease, "cd", KEY)
    said = (
        'shoal lease 3\n{"lease":{"beacon":4611686018427387905,"deadline":1000000000.5,"draw_of":"1/7","groups":8,'
        '"node":"0xab","run":"laptop","step":3,"submission":1,"version":2},"root":"cd"}'
    )
    assert signer_of(said.encode(), signed.signature) == KEY.address


def test_a_signature_is_good_for_its_domain_author_and_lines_alone() -> None:
    def check(author: str, domain: str, *lines: str) -> None:
        check_signed(message(domain, *lines), signature, author, "a note", LedgerError)

    signature = KEY.sign(message("shoal note 1", "a", "b"))
    check(KEY.address, "shoal note 1", "a", "b")
    for author, *lines in (
        (OTHER.address, "shoal note 1", "a", "b"),
        (KEY.address, "shoal note 2", "a", "b"),
        (KEY.address, "shoal note 1", "ab"),
    ):
        with pytest.raises(LedgerError, match=f"a note: signed by 0x.*, not by {author}"):
            check(author, *lines)
    signature = "0x12"
    with pytest.raises(LedgerError, match="a note: signature 0x12"):
        check(KEY.address, "shoal note 1", "a", "b")
    with pytest.raises(ValueError, match="line break"):
        message("shoal note 1", "a\nb")
