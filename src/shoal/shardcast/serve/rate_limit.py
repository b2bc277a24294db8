"""Rate limiter (token bucket per address), connection limits, and the allow-list of signed requests.

Pure bookkeeping over values and a clock; the server asks and obeys.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal.errors import IdentityError
from shoal.keys import Key, signer_of

MAX_ADDRESSES = 4096  # remembered at once; the one not seen for longest is forgotten
SIGNATURE_AGE_S = 60.0
SIGNED_HEADERS = ("Shoal-Address", "Shoal-Time", "Shoal-Nonce", "Shoal-Signature")


@dataclass(frozen=True, slots=True)
class Limits:
    """Load limits of a server. The defaults suit a relay with tens of children behind one address."""

    connections: int = 1024
    connections_per_address: int = 128
    requests_per_s: float = 500.0  # of one address, on average
    burst: float = 1000.0
    idle_s: float = 15.0  # without a whole request
    wait_s: float = 30.0  # a long poll, at most
    least_bytes_per_s: float = 16384.0  # a reader slower than this is cut off
    grace_s: float = 10.0  # before that counts
    lease_s: float = 60.0  # a package that somebody asked for stays at least so long


@dataclass(slots=True)
class Rates:
    """A bucket of requests for each address, filled at a steady rate."""

    per_s: float
    burst: float
    most: int = MAX_ADDRESSES
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, address: str, now: float) -> bool:
        """True if the address may make a request now."""
        left, then = self._buckets.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.per_s)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        while len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return allowed


def sign_request(key: Key, host: str, target: str, now: float, nonce: str) -> dict[str, str]:
    """Headers that say who asks; good once, for this server and this request."""
    stamp = f"{now:.3f}"
    signature = key.sign(_request_message(host, target, stamp, nonce))
    return dict(zip(SIGNED_HEADERS, (key.address, stamp, nonce, signature), strict=True))


@dataclass(slots=True)
class AllowList:
    """Admits requests signed by one of the addresses, each signature once."""

    addresses: Collection[str]
    _seen: OrderedDict[tuple[str, str], float] = field(default_factory=OrderedDict)

    def refusal(self, headers: Mapping[str, str], host: str, target: str, now: float) -> str | None:
        """Why a request is not admitted, or None if it is."""
        address, stamp, nonce, signature = (headers.get(name, "") for name in SIGNED_HEADERS)
        if not (address and stamp and nonce and signature) or len(nonce) > 64 or len(stamp) > 32:
            return "this server only answers signed requests of nodes that it knows"
        try:
            age = abs(now - float(stamp))
        except ValueError:
            return "Shoal-Time is no number"
        if not age <= SIGNATURE_AGE_S:
            return f"the signature is {age:.0f} s off, more than {SIGNATURE_AGE_S:.0f}; set the clock"
        if address.lower() not in self.addresses:
            return f"{address[:42]} is not on the list of nodes that this server answers"
        while self._seen and now - next(iter(self._seen.values())) > 2 * SIGNATURE_AGE_S:
            self._seen.popitem(last=False)
        if (address.lower(), nonce) in self._seen:
            return "the signature was used before"
        try:
            if signer_of(_request_message(host, target, stamp, nonce), signature) != address.lower():
                return f"the signature is not {address[:42]}'s"
        except IdentityError as error:
            return str(error)
        self._seen[address.lower(), nonce] = now
        return None


def _request_message(host: str, target: str, stamp: str, nonce: str) -> bytes:
    return f"shoal shardcast request 1\n{host}\n{target}\n{stamp}\n{nonce}".encode()
