"""A run's honest rates from its coordinator: followed by judges while it goes on, and loosened by its owner."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import trusted
from shoal.client.ledger import ASK_S
from shoal.crypto.keys import Key
from shoal.errors import ConfigError, ShoalError, SwarmError
from shoal.files import make_directory, read_regular, write_whole
from shoal.protocol.rates.honest_rates import EDGES, Floats, HonestRates, bounds
from shoal.protocol.rates.rates_file import Architecture, RatesFile, read_architecture
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.rundir import RunDir

LOOK_EVERY_S = 10.0
# What a request may hold.
MAX_FILE = 60_000
# Of a whole table: as many additions as there may be, and what comes with Shoal.
MAX_TABLE = 1 << 24


def checked_rates(signed: SignedRates, architecture: Architecture) -> RatesTable:
    """The table, if what was added to it was measured on this run's model."""
    for number, added in enumerate(signed.rates.additions, 1):
        added.must_be_of(architecture, f"honest rates of run {signed.run}, version {number}", "this run")
    return signed.rates


class RatesFollower:
    """Asks for the run's table now and then; what comes is signed, of this run's model, and never tighter.

    The last one that was taken is kept on disk. So a judge that starts again refuses an older one too, though its
    signature is right: somebody who recorded it on the way could have honest machines banned by odds that were too
    strict.
    """

    def __init__(
        self,
        fetch: Callable[[], SignedRates],
        architecture: Architecture,
        note: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
        kept: Path | None = None,
    ) -> None:
        self._fetch = fetch
        self._architecture = architecture
        self._note = note
        self._clock = clock
        self._kept = kept
        self._asked = clock()
        signed = fetch()
        before = self._table_before(signed)
        if before is None:
            self.table = checked_rates(signed, architecture)
            self._keep(signed)
        else:
            self.table = before
            self._take(lambda: signed)

    def newer(self) -> RatesTable | None:
        """The table, if there is a version that was not there when it was last asked for."""
        if self._clock() - self._asked < LOOK_EVERY_S:
            return None
        self._asked = self._clock()
        version = self.table.version
        self._take(self._fetch)
        return self.table if self.table.version > version else None

    def _take(self, fetch: Callable[[], SignedRates]) -> None:
        """Takes a later version of the table; files go on being judged by what is there otherwise."""
        try:
            signed = fetch()
            found = checked_rates(signed, self._architecture)
            if not found.continues(self.table):
                raise SwarmError(
                    f"honest rates version {found.version}: lacks some of version {self.table.version}; a run may "
                    "loosen them, never tighten"
                )
        except ShoalError as error:
            self._note(f"no newer honest rates: {error}")
            return
        if found.version > self.table.version:
            self._keep(signed)
            self.table = found

    def _table_before(self, now: SignedRates) -> RatesTable | None:
        """What an earlier life took last, of the same run and signer; None if there is no such file."""
        if self._kept is None or not self._kept.exists():
            return None
        try:
            signed = SignedRates.model_validate_json(read_regular(self._kept, MAX_TABLE))
            signed.check(now.run, now.signer)
            return checked_rates(signed, self._architecture)
        except (OSError, ValueError, ShoalError) as error:
            self._note(f"{self._kept.name}: not a table of this run's honest rates, and is written again ({error})")
            return None

    def _keep(self, signed: SignedRates) -> None:
        if self._kept is not None:
            make_directory(self._kept.parent)
            write_whole(self._kept, signed.model_dump_json().encode())


def newest_rates(join: str, key: Key, run: RunDir) -> RatesTable:
    """The table that the run's coordinator serves now."""
    with CoordinatorClient(trusted(join), key, ASK_S) as link:
        return checked_rates(link.rates(), read_architecture(run.base_model))


def loosen(join: str, path: Path, key: Key, architecture: Architecture | None, console: Console) -> None:
    """Adds the histograms of a rates file to a run's table, and says what that does to its bounds."""
    added = RatesFile.read(path)
    if (size := path.stat().st_size) > MAX_FILE:
        raise ConfigError(f"rates {path}: {size} bytes, at most {MAX_FILE} fit into a request; give fewer profiles")
    with CoordinatorClient(trusted(join), key, ASK_S) as link:
        table, audit = link.rates().rates, link.card.run_config().audit
        after = table.loosened(added, f"rates {path}", architecture, proofs=audit.proofs)
        # Joined again, as the trainer that it is: a node that a run has not heard of is refused.
        link.join("trainer", "trainer")
        link.loosen(after.version, added)
        before, now = table.admitted(audit.profiles), after.admitted(audit.profiles)
    console.print(f"honest rates of run {link.card.run}: version {after.version}", highlight=False)
    for line in changes(before, now):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def changes(before: HonestRates, after: HonestRates) -> list[str]:
    """What bounds became, one line per kind; a bound that rises is looser."""
    lines = []
    for kind, what in (("gaps", "log-prob gaps"), ("shortfalls", "tokens not the best"), ("chunks", "proofs")):
        old, new = (_bounds(rates, kind) for rates in (before, after))
        if (raised := int((new > old * (1 + 1e-9)).sum())) == 0:
            lines.append(f"{what}: as before")
            continue
        at = int(np.argmax(new / np.maximum(old, 1e-300)))
        lines.append(
            f"{what}: looser at {raised} of {len(EDGES)} distances, most at {EDGES[at]:.2g} times the judge's own "
            f"noise, from {old[at]:.2g} to {new[at]:.2g}"
        )
    return lines


def _bounds(rates: HonestRates, kind: str) -> Floats:
    return bounds(getattr(rates, kind).values(), intensity=kind == "shortfalls")
