"""Refusals: why an act is not entered."""

from typing import Literal

from shoal.errors import LedgerError

Code = Literal[
    "not-allowed",
    "unknown",
    "taken",
    "order",
    "beacon",
    "few-judges",
    "full",
    "not-drawn",
    "early",
    "late",
    "mismatch",
    "short",
    "pointless",
]


class Refused(LedgerError):
    """An act that breaks a rule; `code` is the same on every ledger, and nothing was changed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
