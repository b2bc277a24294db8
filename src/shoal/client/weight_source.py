"""`WeightSource` over relays: a background thread prefetches each new version from its first piece on, while the role
still uses the one before.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.bandwidth import RECEIVED
from shoal.errors import ShardcastError, ShoalError, WaitError, WeightsError
from shoal.protocol.stores import Version
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.fetch.downloader import KEEP, MAX_WORKERS
from shoal.shardcast.format.records import LARGEST_PIECE, Entry
from shoal.shardcast.format.store import Store
from shoal.telemetry.metrics import MetricsWriter

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
        keep: int = KEEP,
        max_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`keep` whole versions are on the disk at most: the one in use, and those that are made beside it; and no more
        bytes than `max_bytes` says."""
        self._wait_s = wait_s
        self._fetch_s = min(wait_s, FETCH_S + _slowest_s(RECEIVED.bytes_per_s))
        self._on_note = noting(metrics)
        self._puller = Puller(
            Store(path),
            relays,
            origin,
            run,
            name=name,
            on_note=self._on_note,
            nearest=nearest,
            keep=keep,
            max_bytes=max_bytes,
        )
        self._in_use: Version | None = None
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

    def offered(self) -> Version | None:
        """The newest version that is complete at the origin; the first head is waited for."""
        number = self._puller.latest(self._wait_s, closed=True)
        return None if number is None else self._entry(number)

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
            raise WeightsError(f"version {version.number}: not available ({error})") from error
        self._here[version.number] = version
        return files

    def _fetch_and_hold(self, version: Version) -> Path:
        """The files, kept from being removed; those of a version put together from deltas may go before that.

        Those of the version before are let go first: a role that asks for another one is done with them, and there may
        be no room for both and what the new one is made from.
        """
        if self._in_use != version:
            self._held.close()
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
            self._held, self._in_use = holding, version
            return files

    def _check_offered(self, version: Version) -> None:
        found = self.version(version.number)
        if found != version:
            there = f"root {found.root[:12]} is offered under its number" if found else "it is no longer offered"
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
                self._puller.prefetch(number, self._fetch_s)
                # Its last piece is out a moment before the head that gives its root.
                self._puller.latest(HEARSAY_S, number - 1, closed=True)
                if version := self._entry(number):
                    self._here[number] = version
            except (ShoalError, OSError) as error:  # this thread is the only one that hears of new versions
                if not self._stopped.wait(1.0):
                    self._on_note(str(error))


def _slowest_s(bytes_per_s: float | None) -> float:
    """How long the largest piece takes on a limited line that all transfers share; nothing is heard of it before."""
    return 0.0 if bytes_per_s is None else MAX_WORKERS * LARGEST_PIECE / bytes_per_s


def noting(metrics: MetricsWriter, event: str = "note") -> Callable[[str], None]:
    return lambda text: metrics.write(event, text=text)
