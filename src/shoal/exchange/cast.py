"""Policy versions over the network: the trainer's directory at the origin, relays between, and a channel at every role.

The trainer writes versions into its directory and goes on; the origin, another process, notices, signs and serves them.
A role's channel fetches each new version in the background, from its first piece on, while the role still works with
the one before.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import ShardcastError, ShoalError, WaitError, WeightsError
from shoal.exchange.interfaces import Version
from shoal.files import locked
from shoal.process import free_ports
from shoal.rundir import TAKEOVER_S, RunDir
from shoal.shardcast.follow import Follower, follow
from shoal.shardcast.publish import Publisher
from shoal.shardcast.pull import Puller
from shoal.shardcast.records import Entry
from shoal.shardcast.server import Server, until_stopped
from shoal.shardcast.store import Store
from shoal.shardcast.versions import Versions
from shoal.swarm.member import HERE, Reach, others
from shoal.tls import server_context, speaks_tls
from shoal.watch.metrics import MetricsWriter
from shoal.watch.status import StatusFile

FOLLOW_S = 0.01  # between looks at the trainer's directory
STATUS_S = 0.5
HOLD_ATTEMPTS = 5
# So long may nothing at all arrive of a version that the origin offers.
FETCH_S = 60.0
# A file may be judged by somebody who hears of its version a moment after its maker did.
HEARSAY_S = 2.0
STOP_S = 5.0  # for what the background still does when the channel is closed


class CastChannel:
    """Versions from relays, kept in a directory of its own. A WeightSource; use it as a context manager."""

    def __init__(
        self,
        path: Path,
        relays: Sequence[str],
        origin: str,
        run: str,
        name: str,
        wait_s: float,
        metrics: MetricsWriter,
        nearest: int = 0,
    ) -> None:
        self._wait_s = wait_s
        self._fetch_s = min(wait_s, FETCH_S)
        self._on_note = _noting(metrics)
        self._puller = Puller(Store(path), relays, origin, run, name=name, on_note=self._on_note, nearest=nearest)
        self._here: dict[int, Version] = {}
        self._stopped = threading.Event()
        self._held = contextlib.ExitStack()
        self._follower = threading.Thread(target=self._follow, name=f"{name}-follow", daemon=True)

    def __enter__(self) -> Self:
        self._puller.__enter__()
        self._follower.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._puller.__exit__(kind, error, at)
        self._follower.join(STOP_S)
        self._held.close()

    def also_from(self, relays: Sequence[str]) -> None:
        """Takes versions from these as well."""
        self._puller.also_from(relays)

    def latest(self) -> Version | None:
        """The newest version that is here and that the origin still offers."""
        offered = [version for version in list(self._here.values()) if self._entry(version.number) == version]
        return max(offered, key=lambda version: version.number, default=None)

    def version(self, number: int) -> Version | None:
        """What the origin offers under a number; one that is newer than all is waited for, for a moment.

        Before anything was heard at all, the wait is as long as any.
        """
        self._puller.latest(HEARSAY_S if self._puller.head else self._wait_s, number - 1, closed=True)
        return self._entry(number)

    def was_retracted(self, version: Version) -> bool:
        head = self._puller.head
        return head is not None and version.root in head.retracted

    def fetch(self, version: Version) -> Path:
        """A version's files, checked; they stay until another version is fetched."""
        try:
            self._check_offered(version)
            files = self._fetch_and_hold(version)
            self._check_offered(version)
        except (ShardcastError, WaitError) as error:
            raise WeightsError(f"version {version.number}: not to be had ({error})") from error
        self._here[version.number] = version
        return files

    def _fetch_and_hold(self, version: Version) -> Path:
        """The files, kept from being removed; those of a version put together from deltas may go before that."""
        attempts = HOLD_ATTEMPTS
        while True:
            files = self._puller.fetch(version.number, self._fetch_s, root=version.root)
            holding = contextlib.ExitStack()
            try:
                holding.enter_context(self._puller.store.hold(files.parent.name))
            except ShardcastError:
                attempts -= 1
                if not attempts:
                    raise
                continue
            self._held.close()
            self._held = holding
            return files

    def _check_offered(self, version: Version) -> None:
        found = self.version(version.number)
        if found != version:
            there = f"root {found.root[:12]} is offered under its number" if found else "it is offered no more"
            raise WeightsError(f"version {version.number} (root {version.root[:12]}): {there}")

    def _entry(self, number: int) -> Version | None:
        head = self._puller.head
        entries: Sequence[Entry] = head.packages if head else ()
        root = next((entry.root for entry in entries if entry.number == number and entry.root), None)
        return Version(number, root) if root else None

    def _follow(self) -> None:
        """Fetches each new version as soon as its first piece is out."""
        while not self._stopped.is_set():
            here = self.latest()
            number = self._puller.latest(1.0, here.number if here else -1)
            if number is None:
                continue
            try:
                self._puller.fetch(number, self._fetch_s)
                # Its last piece is out a moment before the head that gives its root.
                self._puller.latest(HEARSAY_S, number - 1, closed=True)
                if version := self._entry(number):
                    self._here[number] = version
            except (ShoalError, OSError) as error:  # this thread is the only one that hears of new versions
                if not self._stopped.wait(1.0):
                    self._on_note(str(error))


def start_origin(run: RunDir, port: int) -> None:
    """Signs and serves the versions of a run, until stopped."""
    taken = f"origin: another one is at work in {run.path}; a run has one origin"
    with locked(run.path / "locks" / "origin", taken, wait_s=TAKEOVER_S), run.role("origin") as (status, metrics):
        store = Store(run.path / "origin")
        with Publisher(store, run.origin_key, run.config.name, run.config.keep.versions) as publisher:
            server = Server(store, name=f"origin of {run.config.name}", port=port)
            follower = Follower(run.path / "weights", Versions(publisher), _noting(metrics, "published"))
            _serve(server, status, lambda: _offer(publisher.entries), lambda: follow(follower, FOLLOW_S))


def start_relay(
    run: RunDir,
    sources: Sequence[str],
    host: str,
    port: int,
    url: str | None = None,
    reach: Reach = HERE,
    tls: bool | None = None,
) -> None:
    """Passes a run's versions on, until stopped; sources are the other relays of the run if none is given.

    A relay that has joined is named in the run card, with the URL under which others reach it and the address that
    vouches for its certificate. Whether it speaks TLS follows from host and URL unless `tls` says so.
    """
    taken = f"relay: another one is at work in {run.path}; start it elsewhere with shoal relay --from URL"
    with locked(run.path / "locks" / "relay", taken, wait_s=TAKEOVER_S), run.role("relay") as (status, metrics):
        store = Store(run.path / "relay")
        context, key = None, reach.own_key(run, "relay")
        if speaks_tls(host, url, tls):
            context = server_context(key, run.config.swarm.tls_cert, run.config.swarm.tls_key)
        own = port or free_ports([0])[0]
        server = Server(store, name="relay", host=host, port=own, public=url, context=context, address=key.address)
        own_url = url or server.url
        with reach.relay(run, status, sources, own_url) as (origin, urls, heart):
            nearest = 0 if sources else reach.nearest()
            puller = Puller(
                store,
                urls,
                origin,
                run.config.name,
                mirror=True,
                name="relay",
                own_url=server.known_as,
                on_note=_noting(metrics),
                nearest=nearest,
            )
            server.facts = puller.facts
            with puller:
                if heart is not None and not sources:
                    heart.on_relays = lambda relays: puller.also_from(others(relays, own_url))
                _serve(server, status, lambda: _offer(puller.head.packages if puller.head else ()))


def _serve(
    server: Server,
    status: StatusFile,
    offer: Callable[[], str],
    feed: Callable[[], Coroutine[None, None, None]] | None = None,
) -> None:
    """Serves until SIGTERM, or until what feeds the server fails: then so does this."""

    async def tell() -> None:
        while True:
            status.working(f"serving {offer()} at {server.url}, {server.counts['bytes_sent'] / 1e6:.0f} MB so far")
            await asyncio.sleep(STATUS_S)

    async def main() -> None:
        await asyncio.gather(server.keep(await server.start()), tell(), *([feed()] if feed else []))

    until_stopped(main)
    status.done(f"served up to {offer()}, {server.counts['bytes_sent'] / 1e6:.0f} MB")


def _offer(entries: Sequence[Entry]) -> str:
    numbers = sorted({entry.number for entry in entries if entry.root})
    return f"version {numbers[-1]}" if numbers else "nothing yet"


def _noting(metrics: MetricsWriter, event: str = "note") -> Callable[[str], None]:
    return lambda text: metrics.write(event, text=text)
