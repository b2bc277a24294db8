"""A run's table of honest rates: append-only, signed, and never tighter than it was.

Each version adds one rates file *beside* those before it, whose counts it leaves alone. A bound is the worst of all
histograms, so an addition can raise it and never lower it, and evidence in nats only falls as bounds rise: a newer
table acquits more and convicts nobody whom an older one acquitted. That is why an arbiter may take the newest.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from shoal.config import RUN_NAME, AuditConfig
from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import ConfigError, SwarmError
from shoal.protocol.profile import NAME
from shoal.protocol.rates.honest_rates import HonestRates
from shoal.protocol.rates.rates_file import Architecture, RatesFile
from shoal.protocol.rates.shipped import default_rates

DOMAIN = "shoal rates 1"
MAX_ADDITIONS = 64
# Stretches of tokens that a histogram must hold before a run takes it: fewer say little about rare differences, and
# their confidence bounds would loosen the odds for everybody.
MIN_UNITS = 64
# Names that an error lists.
MAX_LISTED = 40


class RatesTable(BaseModel):
    """The rates that come with Shoal, and what the run's owner added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shipped: HonestRates
    additions: tuple[RatesFile, ...] = Field((), max_length=MAX_ADDITIONS)

    @property
    def version(self) -> int:
        return len(self.additions)

    @classmethod
    def first(cls, audit: AuditConfig, architecture: Architecture | None = None) -> Self:
        """What a run starts with. ConfigError for rates of another model than this one, and for patterns in
        `audit.profiles` that match nothing."""
        table = cls(shipped=default_rates())
        if audit.rates:
            origin = f"audit.rates {audit.rates}"
            table = table.loosened(RatesFile.read(Path(audit.rates)), origin, architecture, proofs=audit.proofs)
        table.check_patterns(audit.profiles)
        return table

    def loosened(
        self, rates: RatesFile, origin: str, architecture: Architecture | None = None, *, proofs: bool = True
    ) -> Self:
        """The next version, with these rates beside those that are there. In a run without `proofs` nothing is bet on
        any, and rates that were measured there hold none."""
        if architecture is None and self.additions:
            architecture = self.additions[0].architecture
        if architecture is not None:
            rates.must_be_of(architecture, origin, "this run")
        for name, units in rates.rates.gaps.items():
            if units.count < MIN_UNITS:
                raise ConfigError(
                    f"{origin}: {name} rests on {units.count:.0f} units of 64 tokens, at least {MIN_UNITS} are needed; "
                    "measure more answers (--samples), or add up files with shoal calibrate merge"
                )
            # What rests on nothing has no bound, and odds without one would accept everything.
            for kind, least in (("shortfalls", 1e-9), ("chunks", MIN_UNITS if proofs else 0)):
                if (found := getattr(rates.rates, kind)[name].count) < least:
                    raise ConfigError(
                        f"{origin}: {kind} of {name} rest on a count of {found:g}; measure it with shoal calibrate"
                    )
        if self.version >= MAX_ADDITIONS:
            raise ConfigError(
                f"{origin}: the table has {MAX_ADDITIONS} additions, which is the maximum; start a new run with all of "
                "them in audit.rates (shoal calibrate merge)"
            )
        return self.model_copy(update={"additions": (*self.additions, rates)})

    def continues(self, before: Self) -> bool:
        """Whether this is a later version of a table, with all that it had."""
        return self.shipped == before.shipped and self.additions[: before.version] == before.additions

    def names(self) -> list[str]:
        """Ways and profiles that it holds."""
        return list(dict.fromkeys(name for name, _ in self._layers()))

    def admitted(self, patterns: Sequence[str]) -> HonestRates:
        """Rates of all that a run with these patterns admits, to take the worst of; without patterns, of all."""
        kinds: dict[str, dict[str, object]] = {kind: {} for kind in HonestRates.model_fields}
        for number, (name, rates) in enumerate(self._layers()):
            if not patterns or _matches(name, patterns):
                for kind, own in kinds.items():
                    # Measured twice, it stands there twice: counts that are added up could lower a bound.
                    own[name if name not in own else f"{name} #{number}"] = getattr(rates, kind)[name]
        return HonestRates.model_validate(kinds)

    def check_patterns(self, patterns: Sequence[str]) -> None:
        """A ConfigError for a pattern that no name matches: odds would be made of nothing."""
        names = self.names()
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"audit.profiles {pattern!r}: the run's table of honest rates holds no such profile; it holds "
                    f"{_listed(names)}; measure it with shoal calibrate, and give the file as audit.rates"
                )

    def refusal(self, profile: str, patterns: Sequence[str]) -> str:
        """Why a node with this profile may not join; empty if it may.

        Where a run admits only some profiles, a node's must have been measured: odds that are made for others could
        blame it.
        """
        if not patterns or (profile in (names := self.names()) and _matches(profile, patterns)):
            return ""
        admitted = [name for name in names if NAME.fullmatch(name) and _matches(name, patterns)]
        return (
            f"profile {profile or '(none declared)'}: this run admits {_listed(admitted)}; ask its owner to measure "
            "yours (shoal calibrate) and to add it to audit.profiles and to the table (shoal loosen)"
        )

    def _layers(self) -> Iterator[tuple[str, HonestRates]]:
        for rates in (self.shipped, *(addition.rates for addition in self.additions)):
            for name in rates.gaps:
                yield name, rates


class SignedRates(BaseModel):
    """A run's table with its coordinator's signature; anyone can check who says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(pattern=RUN_NAME, max_length=100)
    version: int = Field(ge=0, le=MAX_ADDITIONS, description="Number of additions; it only ever grows.")
    rates: RatesTable
    signature: str = Field(
        max_length=200, description="EIP-191, over three lines: the domain; run and version; the rates, as in RFC 8785."
    )

    @classmethod
    def sign(cls, run: str, rates: RatesTable, key: Key) -> Self:
        signature = key.sign(_message(run, rates))
        return cls(run=run, version=rates.version, rates=rates, signature=signature)

    @property
    def signer(self) -> str:
        """The address whose key signed the table."""
        return signer_of(_message(self.run, self.rates), self.signature)

    def check(self, run: str, coordinator: str) -> None:
        """A SwarmError unless the run's coordinator signed it."""
        where = f"honest rates of run {run}, version {self.version}"
        if (self.run, self.version) != (run, self.rates.version):
            raise SwarmError(f"{where}: came with {self.rates.version} additions of run {self.run}")
        check_signed(_message(run, self.rates), self.signature, coordinator, where, SwarmError)


def _message(run: str, rates: RatesTable) -> bytes:
    head = canonical({"run": run, "version": rates.version})
    return message(DOMAIN, head, canonical(rates.model_dump(mode="json")))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no profile that was measured"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
