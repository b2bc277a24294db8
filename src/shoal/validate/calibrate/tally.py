"""Tally of honest answers: histograms and a few means per way or profile, which add up over files and machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.protocol.rates.honest_rates import EDGES, Histogram, HonestRates
from shoal.protocol.rates.rates_file import MAX_MODEL, Architecture, RatesFile
from shoal.validate.numerics.bets import Floats, Noise, Observed, histograms


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted of honest answers, in multiples of the noise of the judge that counted."""

    tokens: int
    squares: float
    """Sum of squared gaps."""
    short: int
    """Tokens that are not the best under the lease's noise."""
    proofs: float
    """Sum of the distances of proof chunks."""
    gaps: Histogram
    shortfalls: Histogram
    chunks: Histogram

    @classmethod
    def of(cls, answers: Sequence[Observed], noise: Noise) -> Self:
        gaps_T, short_T, chunks_C = (_joined(answers, column) for column in ("gaps_T", "shortfalls_T", "chunks_C"))
        return cls(
            len(gaps_T),
            float(np.sum((gaps_T / noise.gap) ** 2)),
            int((short_T > 0).sum()),
            float(np.sum(chunks_C / noise.mantissa)),
            *histograms(answers, noise),
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.tokens + other.tokens,
            self.squares + other.squares,
            self.short + other.short,
            self.proofs + other.proofs,
            self.gaps + other.gaps,
            self.shortfalls + other.shortfalls,
            self.chunks + other.chunks,
        )


def to_rates_file(tallies: Mapping[str, Tally], model: str, architecture: Architecture) -> RatesFile:
    """What a run takes of tallies, by way or profile."""
    rates = HonestRates.of({name: (one.gaps, one.shortfalls, one.chunks) for name, one in tallies.items()})
    tokens = {name: one.tokens for name, one in tallies.items()}
    return RatesFile(model=model[-MAX_MODEL:], architecture=architecture, tokens=tokens, rates=rates)


def print_tallies(tallies: Mapping[str, Tally], console: Console) -> None:
    """One line per way or profile: how far it is off, in multiples of what the judge's own arithmetic is."""
    table = Table(title="how far honest machines are off, over the judge's own noise", title_justify="left")
    table.add_column("way or profile", overflow="fold")
    for heading in ("tokens", "gaps", "worst unit", "not the best", "proofs"):
        table.add_column(heading, justify="right")
    for name, one in tallies.items():
        table.add_row(
            name,
            f"{one.tokens:,}",
            f"{(one.squares / max(1, one.tokens)) ** 0.5:.2f}",
            f"{_worst(one.gaps):.2f}",
            f"{one.short / max(1, one.tokens):.2%}",
            f"{one.proofs / max(1.0, one.chunks.count):.2f}",
        )
    console.print(table)


def _worst(histogram: Histogram) -> float:
    """The last edge of the scale that anything was above."""
    return float(EDGES[max([0, *(edge for edge, seen in enumerate(histogram.above) if seen)])])


def _joined(answers: Sequence[Observed], column: str) -> Floats:
    return np.concatenate([getattr(answer, column) for answer in answers])
