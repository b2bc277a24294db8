"""Rate limiter: one token bucket per node, or per IP address for requests without a known signature.

A node that has joined is known by its signature and counted by its address, wherever it sits: many of them behind one
router, and a stranger who floods from there, do not share a quota. Everybody else, who would otherwise sign each
request with a new key, is counted by the network that it comes from. The run's own trainer and validators are not
counted: what they ask grows with what the nodes hand in.
"""

import ipaddress
import time
from collections.abc import Callable, Collection

from shoal.coordinator.http.body_limits import App, Receive, Scope, Send
from shoal.crypto.signed_request import HEADERS, Recipient, RequestRefused, Signed, check_request
from shoal.protocol.refusal import Refusal
from shoal.shardcast.serve.rate_limit import Rates

# What may be asked at once, in seconds of the rate: a thousand nodes behind one router join within that.
BURST_S = 20.0
# Remembered at once, as many as nodes may join by default and as many networks again.
MAX_VISITORS = 20_000
SIGNED = "shoal.crypto.signed"
FORWARDED = b"x-forwarded-for"


class Guard:
    """Finds out who made a request, and refuses it if that one asks too often."""

    def __init__(
        self,
        app: App,
        per_s: float,
        recipient: Recipient,
        members: Collection[str],
        trusted: Collection[str],
        clock: Callable[[], float],
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        """`members` are the addresses that have joined, as they are at the time; `clock` is the coordinator's."""
        self._app = app
        self._per_s = per_s
        self._recipient = recipient
        self._members = members
        self._trusted = trusted
        self._clock = clock
        self._tick = tick
        self._rates = Rates(per_s, BURST_S * per_s, MAX_VISITORS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            signed = scope[SIGNED] = self._signed(scope)
            who = signed.node if isinstance(signed, Signed) and signed.node in self._members else network_of(scope)
            if who not in self._trusted and not self._rates.take(who, self._tick()):
                raise Refusal(
                    "too-often", f"{who}: more than {self._per_s:g} requests per second; wait a second (Retry-After)"
                )
        await self._app(scope, receive, send)

    def _signed(self, scope: Scope) -> Signed | Refusal:
        """Whose request it is, or why it is nobody's."""
        sent = dict(scope["headers"])
        headers = {name: sent.get(name.lower().encode(), b"").decode("latin-1") for name in HEADERS}
        target: str = scope["raw_path"].decode("latin-1")
        if query := scope["query_string"]:
            target += f"?{query.decode('latin-1')}"
        try:
            return check_request(headers, scope["method"], target, self._recipient, self._clock())
        except RequestRefused as refused:
            return Refusal(refused.code, refused.reason)


def network_of(scope: Scope) -> str:
    """Where a request comes from: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber gets."""
    address = _address_of(scope)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def neighbours_of(scope: Scope) -> str:
    """The network whose newcomers share one quota of work: an IPv4 /24 or an IPv6 /48, as much as one customer of a
    host rents for little. Empty for this machine, which is nobody else's.

    What a proxy on this machine passes on comes from where the proxy says, which is the last address in its header.
    """
    address = _address_of(scope)
    if (
        not isinstance(address, str)
        and address.is_loopback
        and (passed_on := dict(scope.get("headers", ())).get(FORWARDED))
    ):
        last = passed_on.decode("latin-1").rpartition(",")[2].strip()
        address = _address_of({"client": (last, 0)})
        if isinstance(address, str) or address.is_loopback:
            return FORWARDED.decode()  # it does not say from where
    if isinstance(address, str):
        return address
    if address.is_loopback:
        return ""
    return str(ipaddress.ip_network((int(address), 24 if address.version == 4 else 48), strict=False))


def _address_of(scope: Scope) -> ipaddress.IPv4Address | ipaddress.IPv6Address | str:
    """The other end's address, or its name where it has none, as on a Unix socket."""
    client = scope.get("client")
    host: str = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or "unknown"
    return getattr(address, "ipv4_mapped", None) or address
