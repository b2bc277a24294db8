"""Refusals of the coordinator: an error code for programs and a reason for people."""

from typing import Literal

from shoal.errors import SwarmError

Code = Literal[
    "unsigned",
    "forged",
    "clock",
    "replay",
    "recipient",
    "body",
    "not-joined",
    "not-allowed",
    "banned",
    "suspended",
    "full",
    "too-often",
    "not-yours",
    "unknown",
    "taken",
    "expired",
    "too-large",
    "too-slow",
    "malformed",
    "unavailable",
]

STATUS: dict[Code, int] = {
    "unsigned": 401,
    "forged": 401,
    "clock": 401,
    "replay": 401,
    "recipient": 401,
    "body": 400,
    "not-joined": 403,
    "not-allowed": 403,
    "banned": 403,
    "suspended": 403,
    "full": 429,
    "too-often": 429,
    "not-yours": 403,
    "unknown": 404,
    "taken": 409,
    "expired": 410,
    "too-large": 413,
    "too-slow": 408,
    "malformed": 422,
    "unavailable": 503,
}


class Refusal(SwarmError):
    """A request that is not granted. Nothing has changed, but its nonce is used and its node may have been heard."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code: Code = code
        self.reason = reason

    @property
    def status(self) -> int:
        return STATUS[self.code]
