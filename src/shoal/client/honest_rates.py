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
from shoal.protocol.rates.honest_rates import EDGES, Floats, HonestRates, bounds
from shoal.protocol.rates.rates_file import Architecture, RatesFile, read_architecture
from shoal.protocol.rates.rates_table import RatesTable, SignedRates
from shoal.rundir import RunDir

LOOK_EVERY_S = 10.0
# What a request may hold.
MAX_FILE = 60_000


def checked_rates(signed: SignedRates, architecture: Architecture) -> RatesTable:
    """The table, if what was added to it was measured on this run's model."""
    for number, added in enumerate(signed.rates.additions, 1):
        added.must_be_of(architecture, f"honest rates of run {signed.run}, version {number}", "this run")
    return signed.rates


class RatesFollower:
    """Asks for the run's table now and then; what comes is signed, of this run's model, and never tighter."""

    def __init__(
        self,
        fetch: Callable[[], SignedRates],
        architecture: Architecture,
        note: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._architecture = architecture
        self._note = note
        self._clock = clock
        self._asked = clock()
        self.table = checked_rates(fetch(), architecture)

    def newer(self) -> RatesTable | None:
        """The table, if there is a version that was not there when it was last asked for."""
        if self._clock() - self._asked < LOOK_EVERY_S:
            return None
        self._asked = self._clock()
        try:
            found = checked_rates(self._fetch(), self._architecture)
            if not found.continues(self.table):
                raise SwarmError(
                    f"honest rates version {found.version}: lacks some of version {self.table.version}; a run may "
                    "loosen them, never tighten"
                )
        except ShoalError as error:  # files go on being judged by what is there
            self._note(f"no newer honest rates: {error}")
            return None
        if found.version == self.table.version:
            return None
        self.table = found
        return found


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
        table, patterns = link.rates().rates, link.card.run_config().audit.profiles
        after = table.loosened(added, f"rates {path}", architecture)
        # Joined again, as the trainer that it is: a node that a run has not heard of is refused.
        link.join("trainer", "trainer")
        link.loosen(after.version, added)
        before, now = table.admitted(patterns), after.admitted(patterns)
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
