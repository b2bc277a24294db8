"""Rate limiter (token bucket per address), connection limits, and the allow-list of signed requests.

Pure bookkeeping over values and a clock; the server asks and obeys.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal.crypto.signed_request import REMEMBER_S, Nonces, Recipient, RequestRefused, check_request

MAX_ADDRESSES = 4096  # remembered at once; the one not seen for longest is forgotten


@dataclass(frozen=True, slots=True)
class Limits:
    """Load limits of a server. The defaults suit a relay with tens of children behind one address."""

    connections: int = 1024
    connections_per_address: int = 128
    requests_per_s: float = 500.0  # of one address, on average
    burst: float = 1000.0
    idle_s: float = 15.0  # without a whole request
    wait_s: float = 30.0  # a long poll, at most
    min_bytes_per_s: float = 16384.0  # a reader slower than this is cut off
    grace_s: float = 10.0  # before that counts
    lease_s: float = 60.0  # a package that somebody asked for stays at least so long


@dataclass(slots=True)
class Rates:
    """A bucket of requests for each address, filled at a steady rate."""

    per_s: float
    burst: float
    max_addresses: int = MAX_ADDRESSES
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, address: str, now: float) -> bool:
        """True if the address may make a request now."""
        left, then = self._buckets.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.per_s)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        while len(self._buckets) > self.max_addresses:
            self._buckets.popitem(last=False)
        return allowed


@dataclass(slots=True)
class AllowList:
    """Admits requests signed by one of the addresses, each signature once."""

    addresses: Collection[str]
    _nonces: Nonces = field(default_factory=Nonces)

    def refusal(self, headers: Mapping[str, str], method: str, host: str, target: str, now: float) -> str | None:
        """Why a request is not admitted, or None if it is."""
        if self._nonces.horizon > now:  # the clock was set back: what was signed before now stays refused
            self._nonces = Nonces(horizon=now)
        if now - self._nonces.horizon > 2 * REMEMBER_S:
            self._nonces.forget(now)
        try:
            signed = check_request(headers, method, target, Recipient(host), now)
            if signed.node not in self.addresses:
                return f"{signed.node} is not on the list of nodes that this server answers, or signed something else"
            self._nonces.use(signed)
        except RequestRefused as refused:
            return refused.reason
        return None
