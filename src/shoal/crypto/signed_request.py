"""Signed HTTP requests with replay protection: method, path, body, time, nonce and server under one EIP-191 signature.

The coordinator and the servers of weights check them alike. The message is eight lines that begin with a domain of our
own, so nothing that a peer supplied is signed as it stands. It names the server, and of a coordinator the run: where
one key serves two runs, a request of one is void in the other. A signature is valid for `WINDOW_S` before and after its
time, its nonce remembered for `REMEMBER_S`, by the coordinator across restarts.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import message
from shoal.errors import IdentityError, ShoalError

DOMAIN = "shoal request 2"
WINDOW_S = 60.0
# Longer than any signature is valid: one made by a clock that is a window ahead is valid for two.
REMEMBER_S = 3 * WINDOW_S
# More than any machine serves in that time.
MAX_NONCES = 2_000_000
TIME, NONCE, RECIPIENT, RUN, BODY, SIGNATURE = (
    "Shoal-Time",
    "Shoal-Nonce",
    "Shoal-Recipient",
    "Shoal-Run",
    "Shoal-Body",
    "Shoal-Signature",
)
HEADERS = (TIME, NONCE, RECIPIENT, RUN, BODY, SIGNATURE)
_NONCE = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MILLISECONDS = re.compile(r"[0-9]{1,15}")
EMPTY = hashlib.sha256(b"").hexdigest()

Fault = Literal["unsigned", "forged", "clock", "replay", "recipient", "full"]


class RequestRefused(ShoalError):
    """A request whose signature is missing, wrong, too old, used before or meant for another server."""

    def __init__(self, code: Fault, reason: str) -> None:
        super().__init__(reason)
        self.code: Fault = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Signed:
    """A request whose signature is right: the node that made it, and what makes it good only once."""

    node: str
    nonce: str
    time: float
    body: str
    """SHA-256 of the body that was signed."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a request is for: a coordinator's address and which of its runs, or a server of weights' HOST:PORT."""

    server: str
    run: str = ""


def request_message(method: str, target: str, body: str, milliseconds: str, nonce: str, to: Recipient) -> bytes:
    """What is signed. `target` is path and query as they are sent, `body` the body's SHA-256."""
    return message(DOMAIN, method, target, body, milliseconds, nonce, to.server.lower(), to.run)


def sign_request(key: Key, method: str, target: str, body: str, to: Recipient, now: float) -> dict[str, str]:
    """The headers that make a request this key's, at this time, for this server and run."""
    stamp, nonce = str(int(now * 1000)), secrets.token_hex(16)
    signature = key.sign(request_message(method, target, body, stamp, nonce, to))
    return {TIME: stamp, NONCE: nonce, RECIPIENT: to.server, RUN: to.run, BODY: body, SIGNATURE: signature}


def check_request(headers: Mapping[str, str], method: str, target: str, own: Recipient, now: float) -> Signed:
    """Who made a request, or RequestRefused. Its nonce and its body are the caller's to check."""
    stamp, nonce, meant, run, body, signature = (headers.get(name, "") for name in HEADERS)
    if not signature:
        raise RequestRefused("unsigned", f"{method} {target:.80}: must be signed; give {SIGNATURE} and its companions")
    for name, value, form in ((TIME, stamp, _MILLISECONDS), (NONCE, nonce, _NONCE), (BODY, body, _SHA256)):
        if not form.fullmatch(value):
            raise RequestRefused("unsigned", f"{name} {value!r:.80}: must have the form {form.pattern}")
    if meant.lower() != own.server.lower():
        raise RequestRefused("recipient", f"{RECIPIENT} {meant!r:.60}: this server is {own.server}; sign for it")
    if run != own.run:
        raise RequestRefused("recipient", f"{RUN} {run!r:.80}: this is run {own.run}; sign for it")
    time = int(stamp) / 1000
    if abs(time - now) > WINDOW_S:
        raise RequestRefused("clock", clock_message(time - now))
    try:
        node = signer_of(request_message(method, target, body, stamp, nonce, own), signature)
    except (IdentityError, ValueError) as error:  # a target or a header may have bytes that are not text
        raise RequestRefused("forged", str(error)) from None
    return Signed(node, nonce, time, body)


def clock_message(ahead_s: float) -> str:
    way = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"{TIME}: your clock is {abs(ahead_s):.0f} s {way} this server's, at most {WINDOW_S:.0f} s are allowed; "
        "set it (timedatectl set-ntp true)"
    )


class Nonces:
    """Replay protection: the nonces used since `horizon`. Older requests are refused, so that no nonce is used twice,
    even if the clock is set back."""

    def __init__(self, used: Iterable[tuple[str, str, float]] = (), horizon: float = 0.0) -> None:
        self._used = {(node, nonce): time for node, nonce, time in used}
        self.horizon = horizon

    def __len__(self) -> int:
        return len(self._used)

    def use(self, signed: Signed) -> None:
        """Takes note of a request's nonce; RequestRefused if it was used before."""
        if signed.time <= self.horizon or (signed.node, signed.nonce) in self._used:
            raise RequestRefused("replay", f"{NONCE} {signed.nonce}: was used before; sign each request again")
        if len(self._used) >= MAX_NONCES:
            raise RequestRefused("full", f"{len(self._used)} requests within {REMEMBER_S:.0f} s; try again later")
        self._used[signed.node, signed.nonce] = signed.time

    def forget(self, now: float) -> float:
        """Forgets nonces whose signatures have expired; gives the new horizon."""
        self.horizon = max(self.horizon, now - REMEMBER_S)
        self._used = {used: time for used, time in self._used.items() if time > self.horizon}
        return self.horizon
