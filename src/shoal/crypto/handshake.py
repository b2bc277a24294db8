"""TLS handshakes under a deadline (slowloris protection): a connection counts from the moment it is accepted.

asyncio tells a protocol of a TLS connection when its handshake is done. Until then nobody counts it, so that
half-open connections would pass every limit. Here the limits are asked first, and TLS begins on what they let in.
"""

import asyncio
import asyncio.sslproto
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

# asyncio takes 256 KiB for each connection at once, which thousands of idle ones would have of a server's memory.
asyncio.sslproto.SSLProtocol.max_size = 1 << 15
_tasks: set[asyncio.Task[None]] = set()


class Slots(Protocol):
    """Limits on connections, in all and for each visitor."""

    def enter(self, connection: object, transport: asyncio.Transport) -> bool:
        """Counts a connection; False if there is no room for it."""
        ...

    def leave(self, connection: object) -> None: ...


class Handshake(asyncio.Protocol):
    """Makes TLS of a new connection within `max_s`, then hands it to the protocol that speaks over it."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[asyncio.Transport], asyncio.Protocol],
        slots: Slots,
        max_s: float,
    ) -> None:
        """`make` is given the connection below TLS."""
        self._context = context
        self._make = make
        self._slots = slots
        self._max_s = max_s
        self._early = bytearray()  # what came with the handshake's last message
        self._eof = False
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._slots.enter(self, transport):
            self._slots.leave(self)
            transport.abort()
            return
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._begin(transport))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> None:
        self._eof = True

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost = True

    async def _begin(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        secure = None
        with suppress(OSError, ssl.SSLError):  # what a visitor does wrong fills no log
            secure = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._max_s
            )
        self._slots.leave(self)
        if secure is None or self._lost or secure.is_closing() or not is_secure(secure):
            transport.abort()
            return
        protocol = self._make(transport)
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        if self._early and not secure.is_closing():
            protocol.data_received(bytes(self._early))
        if self._eof:
            secure.close()


def is_secure(transport: asyncio.BaseTransport) -> bool:
    """Whether a handshake was completed on a connection."""
    tls = transport.get_extra_info("ssl_object")
    return tls is not None and tls.version() is not None
