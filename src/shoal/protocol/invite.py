"""Invites: a token that the coordinator's key has signed admits one node to a closed run, once.

    URL#0xCOORDINATOR+ID.EXPIRES.SIGNATURE

The signature covers the run and the coordinator, so a token is worth nothing elsewhere. That it is used once is the
coordinator's part: it writes down which node used it (`coordinator/invites.py`).
"""

import base64
import re
import secrets
from dataclasses import dataclass
from typing import Self

from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import canonical, message
from shoal.errors import IdentityError, SwarmError

DOMAIN = "shoal invite 1"
ID = re.compile(r"[0-9a-f]{32}")
MAX_EXPIRES = 10**12  # seconds since 1970
_TEXT = re.compile(r"([0-9a-f]{32})\.([0-9]{1,12})\.([A-Za-z0-9_-]{87})")


@dataclass(frozen=True, slots=True)
class Invite:
    """A token: its number, until when it can be used (seconds since 1970), and the signature."""

    id: str
    expires: int
    signature: str

    @classmethod
    def make(cls, run: str, key: Key, expires: int) -> Self:
        """A new one, signed with the coordinator's key."""
        number = secrets.token_hex(16)
        return cls(number, expires, key.sign(_said(run, key.address, number, expires)))

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise SwarmError(
                f"invite {text[:12]!r}...: is damaged; it is 32 hexadecimal digits, a time and a signature, joined by "
                "dots. Copy the whole line"
            )
        number, expires, signature = found.groups()
        return cls(number, int(expires), f"0x{base64.urlsafe_b64decode(f'{signature}=').hex()}")

    def __str__(self) -> str:
        raw = base64.urlsafe_b64encode(bytes.fromhex(self.signature.removeprefix("0x"))).decode().rstrip("=")
        return f"{self.id}.{self.expires}.{raw}"

    def is_from(self, run: str, coordinator: str) -> bool:
        """Whether this coordinator's key signed it, for this run."""
        try:
            return signer_of(_said(run, coordinator, self.id, self.expires), self.signature) == coordinator
        except IdentityError:
            return False


def _said(run: str, coordinator: str, number: str, expires: int) -> bytes:
    return message(DOMAIN, canonical({"coordinator": coordinator, "expires": expires, "id": number, "run": run}))
