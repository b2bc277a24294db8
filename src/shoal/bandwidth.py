"""Token bucket for the bytes that this process sends and receives: what a lent machine gives of its line.

The limit is the process's own, not a connection's: every path that moves many bytes (versions from relays, requests to
the coordinator, uploads) passes `RECEIVED` or `SENT`, so that none is forgotten. Without a limit both cost nothing.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator

# Bytes move in portions of what passes in so many seconds: a person who looks at the line sees no bursts.
PORTION_S = 0.1
MIN_PORTION, MAX_PORTION = 4096, 1 << 18
UNLIMITED = 1 << 40
# What the system takes in before it is read, in seconds of the limit: it is on the line already.
BUFFERED_S = 0.25
MIN_BUFFER = 1 << 14


class TokenBucket:
    """Lets so many bytes per second pass, all threads together; None lets everything pass at once."""

    def __init__(
        self,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until = -1.0
        self.total = 0
        self.set(bytes_per_s)

    def set(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s

    @property
    def portion(self) -> int:
        """Bytes to move at once."""
        if self.bytes_per_s is None:
            return UNLIMITED
        return int(min(max(self.bytes_per_s * PORTION_S, MIN_PORTION), MAX_PORTION))

    def take(self, count: int) -> float:
        """Waits until `count` bytes may pass; the seconds that took. Unused time is not saved up: no burst follows a
        pause."""
        with self._lock:
            self.total += count
            if self.bytes_per_s is None:
                return 0.0
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + count / self.bytes_per_s
            wait_s = self._paid_until - now
        self._sleep(wait_s)
        return wait_s


RECEIVED, SENT = TokenBucket(), TokenBucket()


def limit_line(received: float | None, sent: float | None) -> None:
    """Limits what this process receives and sends, in bytes per second."""
    RECEIVED.set(received)
    SENT.set(sent)


def to_send(data: bytes) -> bytes | Iterator[bytes]:
    """A request's body: as it is without a limit, and otherwise portion by portion as fast as they may go. The request
    then has to say its length itself."""
    return data if SENT.bytes_per_s is None else _paced(data)


def _paced(data: bytes) -> Iterator[bytes]:
    size = SENT.portion
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        SENT.take(len(piece))
        yield piece


def socket_options() -> list[tuple[int, int, int]]:
    """Keeps the system from taking in much more than is read: it would be on the line beyond the limit."""
    if RECEIVED.bytes_per_s is None:
        return []
    return [(socket.SOL_SOCKET, socket.SO_RCVBUF, max(MIN_BUFFER, int(RECEIVED.bytes_per_s * BUFFERED_S)))]
