"""HTTP connection to a source: zero-copy reads into our buffers, under a deadline that a slow drip cannot extend.

A source is http://HOST:PORT, or https://HOST:PORT#0xADDRESS with the address that vouches for its certificate, or
https://NAME with a certificate of an authority's. What it sends is believed for the origin's signature alone: TLS keeps
from others on the way what is fetched, and keeps them from choosing what is withheld.
"""

import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from shoal.bandwidth import RECEIVED, socket_options
from shoal.crypto.keys import Key, checked_address
from shoal.crypto.signed_request import EMPTY, Recipient, sign_request
from shoal.crypto.tls import UnvouchedError, pinned_context, public_context
from shoal.errors import IdentityError, ShardcastError

FORM = "http://HOST:PORT or https://HOST:PORT#0xADDRESS"
MAX_HEADERS = 1 << 16  # bytes, with what is read ahead of the body
MAX_TAG = 256  # characters of an entity tag


def distance(host: str) -> int:
    """How far away an address is: 0 this machine, 1 its link, 2 its network, 3 the world. For a name: 0."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return 0
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return 0
    if address.is_link_local:
        return 1
    return 3 if address.is_global else 2


def distances(url: str) -> set[int]:
    """How far away the addresses of a URL's host are; empty for a host that has none."""
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    return {distance(str(address[4][0])) for address in found}


def distance_to(url: str) -> int:
    """How far away the nearest address of a URL's host is; 0 for a host that has none."""
    return min(distances(url), default=0)


class SourceError(ShardcastError):
    """A source did not answer, broke off, stalled or refused: it is asked again later."""


class LieError(ShardcastError):
    """A source sent what the origin did not sign."""


class Pace:
    """Says when a transfer is too slow to continue: nothing for `stall_s`, or less than `min_bytes_per_s`."""

    def __init__(
        self, stall_s: float, min_bytes_per_s: Callable[[], float] = lambda: 0.0, grace_s: float = 2.0
    ) -> None:
        self.stall_s = stall_s
        self._min_bytes_per_s = min_bytes_per_s
        self._grace_s = grace_s
        self.started = time.monotonic()
        self.count = 0
        self._answer_by: float | None = None

    def asked(self, wait_s: float) -> None:
        """From now on the answer's beginning is awaited."""
        self.count = 0
        self._answer_by = time.monotonic() + wait_s + self.stall_s

    def answered(self) -> None:
        """From now on the body arrives."""
        self.started = time.monotonic()
        self.count = 0
        self._answer_by = None

    def rested(self, seconds: float) -> None:
        """Our own limit held the transfer up for so long: no fault of the source's."""
        self.started += seconds

    def took(self, count: int) -> None:
        self.count += count
        now = time.monotonic()
        if self._answer_by is not None:
            if now > self._answer_by or self.count > MAX_HEADERS:
                raise SourceError("an answer that does not begin")
            return
        elapsed = now - self.started
        if elapsed < self._grace_s:
            return
        # A thousandth of a usual link: a source that drips a byte now and then must not hold a piece for ever.
        if self.count < max(self._min_bytes_per_s(), 4096.0) * (elapsed - self._grace_s):
            raise SourceError(f"only {self.count / elapsed:,.0f} bytes per second")


class _Raw(io.RawIOBase):
    """The socket as http.client's buffered reader sees it; every read passes the pace."""

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._sock = sock
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._sock.recv_into(memoryview(buffer)[: RECEIVED.portion])
        self._pace.rested(RECEIVED.take(count))
        self._pace.took(count)
        return count


class _Socket:
    """What http.client needs of a socket."""

    def __init__(self, sock: socket.socket, connection: "Connection") -> None:
        self._sock = sock
        self._connection = connection

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002
        return io.BufferedReader(_Raw(self._sock, self._connection.pace), 16384)

    def close(self) -> None:
        """Nothing: http.client closes as soon as it has read `Connection: close`, and the body is still to come."""


class Connection:
    """Requests to one source, one after another over one connection while it lasts."""

    def __init__(
        self, url: str, *, headers: dict[str, str] | None = None, key: Key | None = None, nearest: int = 0
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or {"https": 443}.get(parts.scheme, 80)
            address = checked_address(parts.fragment) if parts.fragment else None
        except (ValueError, IdentityError) as error:
            raise ShardcastError(f"source {url}: {error}; give it as {FORM}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ShardcastError(f"source {url}: give it as {FORM}")
        self._trust: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._trust = pinned_context(address) if address else public_context()
        self.url = url
        self._host = parts.netloc
        self._path = parts.path.rstrip("/")
        self._address = (parts.hostname, port)
        self._headers = headers or {}
        self._key = key
        self._nearest = nearest
        self._http: http.client.HTTPConnection | None = None
        self._sock: socket.socket | None = None
        self._ended = False
        self.pace = Pace(5.0)

    def get(
        self,
        path: str,
        *,
        pace: Pace,
        first: int | None = None,
        last: int | None = None,
        wait_s: float = 0.0,
        unless: str | None = None,
    ) -> "Response":
        """The answer's beginning; its body is still to be read. SourceError for whatever goes wrong on the way.

        `unless` is the entity tag of an earlier answer: 304 if nothing has changed since.
        """
        target = f"{self._path}/{path}"
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if unless is not None:
            headers["If-None-Match"] = unless
        if first is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        if self._key is not None:
            headers |= sign_request(self._key, "GET", target, EMPTY, Recipient(self._host), time.time())
        fresh = self._http is None or self._http.sock is None
        while True:
            self.pace = pace
            try:
                connection = self._connect(pace)
                assert self._sock is not None
                self._sock.settimeout(pace.stall_s + wait_s)
                pace.asked(wait_s)
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                if (
                    not fresh
                    and not self._ended
                    and isinstance(error, (ConnectionError, http.client.RemoteDisconnected, ssl.SSLEOFError))
                ):
                    fresh = True  # a connection that was kept may have been closed meanwhile
                    continue
                raise SourceError(f"{self.url}: {_why(error)}") from error
            except (SourceError, IdentityError) as error:
                self.close()
                raise SourceError(f"{self.url}: {error}") from None
            self._sock.settimeout(pace.stall_s)
            pace.answered()
            return Response(self, answer)

    def _connect(self, pace: Pace) -> http.client.HTTPConnection:
        if self._http is None or self._http.sock is None:  # the source may have closed it after its answer
            self.close()
            self._sock = self._dial(pace)
            if self._trust is not None:
                try:
                    self._sock = self._secure(self._sock, self._trust)
                except UnvouchedError:  # a proxy in front of it may have an authority's certificate
                    self._sock = self._secure(self._dial(pace), public_context())
            self._http = http.client.HTTPConnection(self._host)
            self._http.sock = _Socket(self._sock, self)
        return self._http

    def _dial(self, pace: Pace) -> socket.socket:
        sock = socket.create_connection(self._address, timeout=pace.stall_s)
        host = str(sock.getpeername()[0])
        if distance(host) < self._nearest:  # asked of the connection itself: a name may lead anywhere by then
            sock.close()
            raise SourceError(f"leads to {host}, which is inside this network; not asked")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in socket_options():
            sock.setsockopt(*option)
        return sock

    def _secure(self, sock: socket.socket, trust: ssl.SSLContext) -> socket.socket:
        """TLS over a connection; the whole handshake has the time that the connection waits for a byte."""
        try:
            return trust.wrap_socket(sock, server_hostname=self._address[0])
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def interrupt(self) -> None:
        """Ends the transfer under way, from another thread, and for good."""
        self._ended = True
        sock = self._sock
        if sock is not None:
            try:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which another thread is at
            except OSError:
                return


class Response:
    """An answer whose body is read by the caller, all of it, or the connection is closed."""

    def __init__(self, connection: Connection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._answer = answer
        self.status = answer.status
        self.length = answer.length

    @property
    def tag(self) -> str | None:
        """The entity tag of what was sent, if the source gives one that can be sent back."""
        tag = self._answer.getheader("ETag") or ""
        return tag if 0 < len(tag) <= MAX_TAG and tag.isascii() and tag.isprintable() else None

    def says_size_below(self, size: int) -> bool:
        """For a range that could not be given: whether the file is said to be shorter than this."""
        said = (self._answer.getheader("Content-Range") or "").removeprefix("bytes */")
        return said.isascii() and said.isdigit() and len(said) < 19 and int(said) < size

    def fill(self, view: memoryview) -> None:
        """Reads exactly as many bytes as the view has."""
        try:
            while view:
                count = self._answer.readinto(view)
                if not count:
                    raise SourceError(f"{self._connection.url}: the connection broke in the middle of the answer")
                view = view[count:]
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise SourceError(f"{self._connection.url}: {_why(error)}") from error
        except SourceError as error:
            self._connection.close()
            if self._connection.url in str(error):
                raise
            raise SourceError(f"{self._connection.url}: {error}") from None

    def read(self, max_bytes: int) -> bytes:
        """The whole body, if it says its length and that is not too much."""
        if self.length is None or self.length > max_bytes:
            self._connection.close()
            raise SourceError(f"{self._connection.url}: an answer of {self.length} bytes, more than {max_bytes:,}")
        data = bytearray(self.length)
        self.fill(memoryview(data))
        self._answer.close()  # an empty body too is over, or the connection takes no other request
        return bytes(data)

    def drop(self) -> None:
        """Reads a short body to keep the connection, or closes it."""
        if self.length is not None and self.length <= 4096:
            self.read(4096)
        else:
            self._connection.close()


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
