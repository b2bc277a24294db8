"""Canonical JSON (RFC 8785) and domain-separated signatures: what is signed has one form, in every language.

A signed message is lines of text. The first is its domain, such as `shoal lease 3`: the format's name and version, so
that no signature passes for one of another kind. A structured value is one line of canonical JSON, which never contains
a line break. The signature is EIP-191 (`personal_sign`) over the UTF-8 bytes.
"""

import json
import math
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from shoal.crypto.keys import signer_of
from shoal.errors import IdentityError, ShoalError

_LITERALS = {None: "null", True: "true", False: "false"}
# In C, and right for a value without floats whose names are ASCII: ledgers and manifests hold no other.
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False)


def canonical(value: Any) -> str:
    """A JSON value in RFC 8785's form; ValueError for what has none, such as NaN or half of a surrogate pair.

    Integers are written in full. Up to 2**53 that is the RFC's form; beyond, where the RFC has only rounded ones, a
    reader needs integers of arbitrary size.
    """
    text = _ENCODER.encode(value) if _is_simple(value) else _written(value)
    text.encode()  # half of a surrogate pair has no UTF-8
    return text


def message(domain: str, *lines: str) -> bytes:
    """The bytes that are signed: a domain and what is said under it, a line each."""
    if any("\n" in line for line in (domain, *lines)):
        raise ValueError(f"{domain}: a line of a signed message contains a line break")
    return "\n".join((domain, *lines)).encode()


def check_signed(said: bytes, signature: str, author: str, what: str, error: type[ShoalError]) -> None:
    """Raises an `error` about `what` unless the author's key signed the message `said`."""
    try:
        signer = signer_of(said, signature)
    except IdentityError as reason:
        raise error(f"{what}: {reason}") from None
    if signer != author:
        raise error(f"{what}: signed by {signer}, not by {author}, or changed since")


def _is_simple(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is dict:
        return all(type(name) is str and name.isascii() for name in value) and all(map(_is_simple, value.values()))
    return (kind is list or kind is tuple) and all(map(_is_simple, value))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return _LITERALS[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode_basestring(name)}:{_written(value[name])}" for name in _ordered(value)]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_written(inner) for inner in value]) + "]"
    raise ValueError(f"{type(value).__name__} {value!r:.80}: has no form in JSON")


def _ordered(tree: dict[str, Any]) -> list[str]:
    """Names by their UTF-16 code units, which is not quite the order of Python's strings."""
    if not all(isinstance(name, str) for name in tree):
        raise ValueError(f"an object with the names {list(tree)!r:.80}: names in JSON are strings")
    if all(map(str.isascii, tree)):
        return sorted(tree)
    return sorted(tree, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _number(value: float) -> str:
    """ECMAScript's Number::toString: the same shortest digits as Python's repr, in another layout."""
    if not math.isfinite(value):
        raise ValueError(f"{value}: JSON has no number for it; give a finite one")
    if value == 0:
        return "0"
    negative, figures, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, figures))
    point = len(digits) + exponent  # digits before the decimal point
    if len(digits) <= point <= 21:
        text = digits.ljust(point, "0")
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1:+d}"
    return f"-{text}" if negative else text
