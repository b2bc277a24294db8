"""HTTP client of the coordinator: signed requests, retried with backoff until the network is back or time is up.

A request gets a fresh signature each time it is sent, and every request is idempotent at the coordinator, so a retry is
always safe. What is refused is not repeated: it is an error that says why.

Over https the coordinator is known by the address that was given or remembered (`crypto/tls.py`), or by an authority's
certificate; nothing is sent to anybody else, and no redirect is followed.

A coordinator is not trusted with this machine: an answer has an end and a form, and is text that a terminal can show.
"""

import hashlib
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import httpx2
from pydantic import BaseModel, ValidationError

from shoal.bandwidth import RECEIVED, socket_options, to_send
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import EMPTY, Recipient, sign_request
from shoal.crypto.tls import UnvouchedError, WrongServerError, pinned_context, public_context
from shoal.errors import BannedError, IdentityError, RolloutError, SwarmError, WaitError
from shoal.files import parse_json
from shoal.protocol import messages as m
from shoal.protocol.rates.rates_file import RatesFile
from shoal.protocol.rates.rates_table import SignedRates
from shoal.protocol.refusal import STATUS, Refusal
from shoal.protocol.run_card import MAX_CARD_BYTES, Card, Join, read_card
from shoal.protocol.task_weights import SignedTable
from shoal.shardcast.fetch.http import distance_to
from shoal.tasks.difficulty import Table
from shoal.text import one_line
from shoal.wait import Wait

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
# Answers that say: not now. A body that came too slowly (408) was held up on its way, by no fault of the request.
LATER = (408, 429, 502, 503, 504)
# Enough for a list of a thousand files or nodes.
MAX_ANSWER = 8 << 20
MAX_REFUSAL = 1 << 16
MAX_REASON = 4000  # characters
# A whole answer, which the coordinator has ready or holds for ten seconds.
ANSWER_S = 120.0
PLAIN = {"Accept-Encoding": "identity"}
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Note = Callable[[str, float], None]


class CoordinatorClient:
    """Signed requests of one key to one coordinator."""

    def __init__(
        self,
        join: str | Join,
        key: Key,
        wait_s: float = 600.0,
        on_wait: Note = lambda _what, _left_s: None,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_wait` is told what is waited for, and how many seconds longer at most."""
        self.join_at = Join.parse(join) if isinstance(join, str) else join
        self.key = key
        self._wait_s = wait_s
        self._on_wait = on_wait
        self._clock = clock
        self._timeout_s = timeout_s
        self._public = self._connect(public_context())  # to an object store, or a coordinator with such a certificate
        self._client = self._public
        self._pinned: httpx2.Client | None = None
        if self.join_at.is_secure and self.join_at.coordinator is not None:
            self._client = self._pinned = self._connect(pinned_context(self.join_at.coordinator))
        self._card: Card | None = None
        self._joined: dict[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._public.close()
        if self._pinned is not None:
            self._pinned.close()

    def _connect(self, context: ssl.SSLContext) -> httpx2.Client:
        timeout = httpx2.Timeout(self._timeout_s, connect=min(10.0, self._timeout_s))
        if not (options := socket_options()):
            return httpx2.Client(timeout=timeout, verify=context, trust_env=False, follow_redirects=False)
        transport = httpx2.HTTPTransport(verify=context, trust_env=False, socket_options=options)
        return httpx2.Client(timeout=timeout, transport=transport, trust_env=False, follow_redirects=False)

    @property
    def card(self) -> Card:
        """The run card, fetched at first use; who it names as coordinator stays the same from then on."""
        return self._card or self.refresh()

    def refresh(self) -> Card:
        """The run card as it is now."""
        data = self._patiently("GET", "/v1/card", None, bytes, signed=False, max_bytes=MAX_CARD_BYTES)
        card = read_card(data, self.join_at)
        self.join_at = replace(self.join_at, coordinator=card.coordinator)
        self._card = card
        return card

    def server_time(self) -> float | None:
        """The coordinator's clock, to the second; None if it, or a proxy in front of it, does not tell."""
        _ = self.card  # who answers is checked first

        def once() -> float | None:
            with self._client.stream("GET", f"{self.join_at.url}/v1/card", headers=PLAIN) as answer:
                _read(answer, MAX_CARD_BYTES)
            try:
                # A Date header is cut to its second: half of one is missing on average.
                return parsedate_to_datetime(answer.headers.get("Date", "")).timestamp() + 0.5
            except ValueError:
                return None

        return self._until("/v1/card", once)

    def join(self, role: str, name: str = "", url: str = "", profile: str = "") -> None:
        """Joins the run, or says that the node is still there."""
        invite = {"invite": self.join_at.invite} if self.join_at.invite else {}
        self._joined = {"role": role, "name": name, "url": url, "profile": profile, **invite}
        self.send("POST", "/v1/nodes", self._joined)

    def heartbeat(self, doing: str = "", waits_on: str = "", version: int | None = None) -> dict[str, Any]:
        said = {"doing": one_line(doing)[:200], "waits_on": one_line(waits_on)[:64], "version": version}
        return self.ask(m.OrderOut, "POST", "/v1/heartbeats", said).model_dump()

    def hand_back(self) -> list[tuple[int, int]]:
        """Ends all leases that this node holds and cannot finish, as step and submission; their draws come again."""
        back = self.ask(m.HandedBack, "DELETE", "/v1/leases").leases
        return [(lease.step, lease.submission) for lease in back]

    def announce(self, number: int, root: str, table: Table | None = None) -> None:
        """Makes a policy version known; leases for it are given from then on, and draw tasks by its table."""
        weights = {} if table is None else {"table": table.model_dump(mode="json")}
        self.send("PUT", f"/v1/versions/{number}", {"root": root, **weights})

    def retract(self, after: int) -> list[int]:
        """Takes policy versions above a number back; says which."""
        return self.ask(m.Numbers, "DELETE", f"/v1/versions?after={after}").numbers

    def table(self, number: int) -> SignedTable:
        """What leases of this version draw their tasks by, as the coordinator signed it."""
        signed = self.look(SignedTable, f"/v1/tables/{number}")
        signed.check(self.card.run, number, self.card.coordinator)
        return signed

    def rates(self) -> SignedRates:
        """The run's table of honest rates, as the coordinator signed it."""
        signed = self.look(SignedRates, "/v1/rates")
        signed.check(self.card.run, self.card.coordinator)
        return signed

    def loosen(self, version: int, added: RatesFile) -> bool:
        """Adds honest rates to the run's table as its next version; whether that changed anything."""
        return self.ask(m.Done, "PUT", f"/v1/rates/{version}", added.model_dump(mode="json")).changed

    def send(self, method: str, target: str, body: Any = None) -> dict[str, Any]:
        """Makes a signed request with a JSON body; the answer as it was parsed."""
        data = None if body is None else json.dumps(body).encode()
        return self._patiently(method, target, data, _tree)

    def ask(self, form: type[M], method: str, target: str, body: Any = None) -> M:
        """The same for an answer that has a form."""
        return self._formed(form, target, self.send(method, target, body))

    def put_file(self, target: str, data: bytes) -> None:
        self._patiently("PUT", target, data, _tree, kind="application/octet-stream")

    def put_direct(self, target: str, data: bytes, signal: int) -> None:
        """Sends a file to the object store, and tells the coordinator."""
        said = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "signal": signal}

        def once() -> None:
            where = self.ask(m.UploadOut, "POST", target, said)  # again on each try: a URL expires
            if where.done:
                return
            if not (where.url or "").startswith(("http://", "https://")):
                raise SwarmError(
                    f"coordinator {self.join_at.url}: gave {where.url!r:.80} as the URL of an object store"
                )
            if distance_to(where.url or "") < distance_to(self.join_at.url):
                raise SwarmError(
                    f"coordinator {self.join_at.url}: gave {where.url!r:.80} as the URL of an object store, which is "
                    "nearer to this machine than the coordinator is; nothing was sent"
                )
            # What is answered is not repeated to anybody: the URL is the coordinator's, and may lead inside.
            sized = {"Content-Length": str(len(data))}
            with self._public.stream("PUT", cast("str", where.url), content=to_send(data), headers=sized) as answer:
                status = answer.status_code
            if status not in (200, 201):
                raise _Later(f"the object store answered {status}")
            self.send("POST", f"{target}/done", said)

        self._until(target, once)

    def get(self, target: str) -> Any:
        """What anybody may ask."""
        return self._patiently("GET", target, None, _json, signed=False)

    def look(self, form: type[M], target: str) -> M:
        """The same for an answer that has a form."""
        return self._formed(form, target, self.get(target))

    def _formed(self, form: type[M], target: str, tree: dict[str, Any]) -> M:
        try:
            return form.model_validate(tree)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise SwarmError(
                f"coordinator {self.join_at.url}: its answer to {target} is invalid ({one_line(where):.80}: "
                f"{fault['msg']}); is it a coordinator of this release?"
            ) from None

    def fetch(
        self,
        target: str,
        to: Path,
        max_bytes: int,
        sha256: str,
        on_bytes: Callable[[int], None] = lambda _came: None,
        wait_s: float | None = None,
    ) -> None:
        """Writes an answer of this hash, and of at most so many bytes, into a file.

        What was damaged on its way comes again, for `wait_s` or else the link's own. `on_bytes` hears how many have
        come.
        """

        def once() -> None:
            digest, came = hashlib.sha256(), 0
            with self._stream("GET", target) as answer, to.open("wb") as file:
                for piece in answer.iter_raw():
                    RECEIVED.take(len(piece))
                    came += len(piece)
                    if came > max_bytes:
                        raise SwarmError(f"{target}: is larger than the {max_bytes} bytes it may have")
                    digest.update(piece)
                    file.write(piece)
                    on_bytes(came)
            if digest.hexdigest() != sha256:
                found = digest.hexdigest()[:12]
                raise httpx2.ReadError(f"{came} bytes came, with hash {found} and not {sha256[:12]}")

        self._until(target, once, wait_s)

    def _sign(self, method: str, target: str, body: str) -> dict[str, str]:
        to = Recipient(self.card.coordinator, self.card.run)
        return sign_request(self.key, method, target, body, to, self._clock())

    @contextmanager
    def _stream(self, method: str, target: str) -> Iterator[httpx2.Response]:
        headers = self._sign(method, target, EMPTY)
        with self._client.stream(method, self.join_at.url + target, headers=headers | PLAIN) as answer:
            if answer.status_code != 200:
                raise _refusal(answer.status_code, _read(answer, MAX_REFUSAL))
            yield answer

    def _patiently(
        self,
        method: str,
        target: str,
        data: bytes | None,
        parse: Callable[[bytes], T],
        *,
        signed: bool = True,
        kind: str = "application/json",
        max_bytes: int = MAX_ANSWER,
    ) -> T:
        body = hashlib.sha256(data).hexdigest() if data else EMPTY

        def once() -> T:
            headers = PLAIN | ({"Content-Type": kind} if data is not None else {})
            if signed:
                headers |= self._sign(method, target, body)
            if data:
                headers |= {"Content-Length": str(len(data))}
            content = to_send(data) if data else data
            with self._client.stream(method, self.join_at.url + target, content=content, headers=headers) as answer:
                said = _read(answer, max_bytes if answer.status_code == 200 else MAX_REFUSAL)
            if answer.status_code != 200:
                raise _refusal(answer.status_code, said)
            return parse(said)

        try:
            return self._until(target, once)
        except Refusal as refusal:
            # A run that is full forgets nodes that were gone for a while and had no file accepted.
            if refusal.code != "not-joined" or self._joined is None or target == "/v1/nodes":
                raise
            self.send("POST", "/v1/nodes", self._joined)
            return self._until(target, once)

    def _doubted(self, error: Exception) -> str:
        """The first time it is an error. A coordinator that was there before is waited for: a machine in the middle can
        keep nodes waiting for a moment, and end none of them."""
        if self._card is None:
            raise error
        return str(error)

    def _refused(self, doubt: ssl.SSLCertVerificationError) -> str:
        where = f"coordinator {self.join_at.url}: nothing was sent, for no authority that this machine trusts vouches"
        if (address := self.join_at.coordinator) is not None:
            return (
                f"{where} for its certificate ({doubt.verify_message}), and neither does {address}; is it another "
                "coordinator, or does somebody sit in the middle?"
            )
        return (
            f"{where} for its certificate ({doubt.verify_message}); give the whole line that the run's owner has, "
            f"{self.join_at.url}#0xADDRESS"
        )

    def _until(self, what: str, once: Callable[[], T], wait_s: float | None = None) -> T:
        """Tries until it is answered, with growing pauses; a WaitError when the deadline is past."""
        wait_s = self._wait_s if wait_s is None else min(wait_s, self._wait_s)
        wait = Wait(wait_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return once()
            except UnvouchedError:
                self._client = self._public  # a proxy in front of it may have an authority's certificate
                continue
            except WrongServerError as error:
                reason = self._doubted(error)
            except httpx2.TransportError as error:
                if (doubt := _doubt(error)) is not None:
                    reason = self._doubted(SwarmError(self._refused(doubt)))
                    self._client = self._pinned or self._public
                else:
                    reason = str(error) or type(error).__name__
            except _Later as later:
                reason = str(later)
            except httpx2.InvalidURL as error:
                raise SwarmError(f"--join {self.join_at.url}: {error}") from None
            if (left := wait.left) > 0:
                self._on_wait(f"coordinator {self.join_at.url} ({reason})", left)
            if not wait.pause():
                raise WaitError(
                    f"coordinator {self.join_at.url}: did not answer {what} within {wait_s:.0f} s ({reason}); "
                    "is it running, and is the URL right?"
                )


def _doubt(error: Exception) -> ssl.SSLCertVerificationError | None:
    """Why a server's certificate was not believed, if that is what an error comes from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause


class _Later(Exception):
    """The coordinator cannot do it now."""


def _read(answer: httpx2.Response, max_bytes: int) -> bytes:
    """The body as it came. One without end, or one that drips, is given up; a compressed one is not unfolded."""
    data, began = bytearray(), time.monotonic()
    for piece in answer.iter_raw():
        began += RECEIVED.take(len(piece))
        data += piece
        if len(data) > max_bytes:
            raise SwarmError(f"{answer.url}: an answer of more than {max_bytes} bytes; is a coordinator at that URL?")
        if time.monotonic() - began > ANSWER_S:
            raise _Later(f"an answer that does not end within {ANSWER_S:.0f} s")
    return bytes(data)


def _json(data: bytes) -> Any:
    """An answer's JSON. Anything else is not a coordinator's: a network that wants a login first, or a proxy's page."""
    try:
        return parse_json(data)
    except (ValueError, RecursionError):
        raise _Later(f"it answered {one_line(data[:60].decode(errors='replace'))!r}, which is not valid JSON") from None


def _tree(data: bytes) -> dict[str, Any]:
    tree = _json(data)
    if not isinstance(tree, dict):
        raise _Later(f"it answered {str(tree)[:60]!r}, which is not a JSON object")
    return tree


def _refusal(status: int, said: bytes) -> Exception:
    """The error that an answer stands for."""
    try:
        tree = parse_json(said)
        code, reason = str(tree["error"]), one_line(str(tree["reason"]))[:MAX_REASON]
    except (ValueError, KeyError, TypeError, RecursionError):
        code, reason = "", f"{status} {one_line(said.decode(errors='replace'))[:200]!r}"
    # A proxy sent a request twice and lost the first answer: it is signed again.
    if status in LATER or code == "replay":
        return _Later(reason)
    if code == "banned":
        return BannedError(reason)
    if code in ("clock", "forged", "recipient"):
        return IdentityError(reason)
    if code in ("expired", "taken", "not-yours", "too-large"):
        return RolloutError(reason)
    return Refusal(code, reason) if code in STATUS else SwarmError(f"coordinator: {reason}")
