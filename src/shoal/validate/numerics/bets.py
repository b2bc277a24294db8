"""Evidence in nats (e-values): what a gambler wins who bets that a file is not honest, at odds fair to honest files.

Every bet has an expectation of at most 1 for honest machines, whatever the order and number of tokens, so more than x
nats come with a probability of at most e^-x (Markov). Several bets are laid side by side, each for a kind of cheat:

- `gaps`: claimed log-probs are further off, unit by unit, than honest ones are. Needs no guess of how.
- `shortfalls`: tokens are not those that the lease's noise picks, more often than rounding decides between two.
- `edits`: a few tokens are far below the best one, whatever the others are (`_edits`).
- `tilt`, `unlikely`, `ends`: with free sampling, tokens are not drawn by the distribution (`free_draws.py`).
- `chunks`: proofs are further off than honest ones.
- `gaps in parts`: those of some answers are, in a file that is honest otherwise.
- `shift`: gaps follow what a *particular* other computation would yield: weights in 8 bits, the version before, another
  temperature. Rounding has no reason to, so this sees what is far smaller than the noise. It is fair to any noise whose
  projection on the shift is as likely to be too high as too low.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.protocol.rates.honest_rates import EDGES, Histogram, HonestRates, bounds
from shoal.validate.numerics.alternative_names import shift_bet
from shoal.validate.numerics.free_draws import Draws, free_nats

Floats = npt.NDArray[np.float64]
UNIT = 64
MIN_UNIT = 16
# Gaps count up to so many times the noise each: one token is not to speak for its unit.
MAX_GAP = 16.0
# Exponents of the bets on units and chunks: how much more is won one step (a quarter of a doubling) further up.
TILTS = (0.5, 1.5, 4.0)
# Bets that a part of a file is off, which its honest rest does not outweigh: for so many units side by side, and what
# share of the file is expected to be off.
PARTS = ((1, 1 / 8), (4, 1 / 64))
PART_TILT = 1.5
# Bets on shortfalls: from which multiple of the noise on, and how much more often than is honest.
SHORT_FROM = (0.0, 1.0, 4.0, 16.0)
SHORT_TIMES = (2.0, 16.0, 256.0, 8192.0)
# Bets on edits: one token of so many. Where more are edited, these and those on shortfalls win all the more.
EDIT_EVERY = (8192, 65536)
# Of a million tokens, one may be anything for reasons that nobody measured, such as a bit that flips in memory. Of more
# than a million honest tokens none was 23 times the noise off; of SmolLM2's edits three quarters are 32 times.
UNEXPLAINED = 1e-6
# A token that is as far off as one of so many honest ones is where an edit begins to be likelier.
RARE = 3e-6
# A shift counts from this share of what the other computation would yield; below it a bias may be honest.
HONEST_SHARE = 0.3
# What is staked on each unit's following a shift. All of it wins at most log 2 and may lose any number of nats, so that
# one unit of heavy-tailed noise outweighs hundreds that follow.
SHIFT_STAKE = 0.75


@dataclass(frozen=True, slots=True)
class Noise:
    """What the judge's own arithmetic in the run's format is off by, on the version's weights."""

    gap: float
    """Root mean square of normalised log-prob gaps."""
    mantissa: float
    """Mean mantissa difference of proof chunks."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One answer beside its recomputation in float32."""

    gaps_T: Floats
    """Claimed minus true log-prob, over what unit noise in all logits would make of it."""
    shortfalls_T: Floats
    close_T: Floats
    """Density of close calls: 1 - sum of p^2."""
    chunks_C: Floats
    """Mean mantissa difference per proof chunk."""
    shifts: Mapping[str, Floats] = field(default_factory=dict)
    """What another computation would make of the gaps, by its name."""
    draws: Draws | None = None
    """Tokens beside their distributions, where sampling is free."""


class Bets:
    """Odds that are fair to honest machines."""

    def __init__(self, rates: HonestRates) -> None:
        self._gaps = _tilted(bounds(rates.gaps.values()))
        self._chunks = _tilted(bounds(rates.chunks.values()))
        short = bounds(rates.shortfalls.values(), intensity=True)
        self._short = [float(short[_edge(start)]) for start in SHORT_FROM]
        self._far = bounds(rates.shortfalls.values(), intensity=True, exponential=True)

    def nats(self, answers: Sequence[Observed], noise: Noise) -> dict[str, float]:
        """What each bet wins on a file, in nats."""
        units = np.array([_rms(gaps_U, noise.gap) for gaps_U in _units([answer.gaps_T for answer in answers])])
        chunks = _joined([answer.chunks_C for answer in answers]) / noise.mantissa
        won = {f"gaps {tilt:g}": float(odds[_bins(units)].sum()) for tilt, odds in self._gaps.items()}
        won |= {f"chunks {tilt:g}": float(odds[_bins(chunks)].sum()) for tilt, odds in self._chunks.items()}
        each = self._gaps[PART_TILT][_bins(units)]
        won |= {part_bet(size): _in_part(each, size, share) for size, share in PARTS}
        won |= self._shortfalls(answers, noise.gap)
        if free := [answer.draws for answer in answers if answer.draws is not None]:
            won |= free_nats(free, noise.gap)
        for name in sorted({name for answer in answers for name in answer.shifts}):
            own = [answer for answer in answers if name in answer.shifts]
            pairs = zip(_units([a.gaps_T for a in own]), _units([a.shifts[name] for a in own]), strict=True)
            won[shift_bet(name)] = sum((_follows(gaps_U, shift_U, noise.gap) for gaps_U, shift_U in pairs), 0.0)
        return won

    def _shortfalls(self, answers: Sequence[Observed], noise: float) -> dict[str, float]:
        """Of something of probability p_t at place t, which happened `count` times: its odds to happen so many times
        as often have an expectation of 1."""
        short_T = _joined([answer.shortfalls_T for answer in answers])
        close_T = _joined([answer.close_T for answer in answers])
        won = {}
        for start, rate in zip(SHORT_FROM, self._short, strict=True):
            p_T = np.minimum(1.0, close_T * noise * rate)
            count = int((~(short_T <= start * noise)).sum())
            for times in SHORT_TIMES:
                name = f"shortfalls {start:g} x{times:g}"
                won[name] = float(count * np.log(times) - np.log1p((times - 1.0) * p_T).sum())
        return won | self._edits(short_T, close_T, noise)

    def _edits(self, short_T: Floats, close_T: Floats, noise: float) -> dict[str, float]:
        """Each token's p-value, a bound on the probability that rounding puts it so far below the best, becomes odds
        that rise as p falls: r (1 + r) / (r + p)^2 integrates to 1 over p from 0 to 1, for any r. Of what there is, the
        share of tokens that a cheat edits is staked on each, and the rest is kept: an honest token costs no more."""
        p_T = np.minimum(1.0, close_T * noise * self._far[_bins(short_T / noise)] + UNEXPLAINED)
        odds_T = RARE * (1 + RARE) / (RARE + np.where(short_T <= 0, 1.0, p_T)) ** 2
        return {edit_bet(every): float(np.log1p((odds_T - 1) / every).sum()) for every in EDIT_EVERY}


def part_bet(size: int) -> str:
    return f"gaps in parts of {size}"


def edit_bet(every: int) -> str:
    return f"edits of 1 in {every}"


def bet_names(shifts: Sequence[str]) -> list[str]:
    """All bets of a run whose judges look for these shifts."""
    return [
        *(f"{kind} {tilt:g}" for kind in ("gaps", "chunks") for tilt in TILTS),
        *(part_bet(size) for size, _ in PARTS),
        *(f"shortfalls {start:g} x{times:g}" for start in SHORT_FROM for times in SHORT_TIMES),
        *map(edit_bet, EDIT_EVERY),
        *map(shift_bet, shifts),
    ]


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)


def _tilted(above: Floats) -> dict[float, Floats]:
    return {tilt: _odds(above, tilt) for tilt in TILTS}


def _odds(above: Floats, tilt: float) -> Floats:
    """log of what a bet pays in each bin: it rises along the scale, and pays 1 on average under the bounds.

    The odds never fall, so machines that are off by less than the bounds say, everywhere on the scale, pay less.
    """
    above = np.concatenate([[1.0], above[1:]])
    mass = above - np.append(above[1:], 0.0)
    rise = tilt * np.arange(len(EDGES)) / 4 * np.log(2)
    return np.asarray(rise - np.logaddexp.reduce(rise + np.log(np.maximum(mass, 1e-300))))


def _in_part(won: Floats, size: int, share: float) -> float:
    """What is won if of each stretch that share alone is bet, and the rest kept: it pays 1 on average as the bets do,
    and an honest stretch costs no more than the share."""
    parts = [part.sum() for part in np.array_split(won, max(1, len(won) // size))]
    return float(np.log1p(share * np.expm1(parts)).sum())


def _edge(distance: float) -> int:
    return int(np.searchsorted(EDGES, distance, side="left"))


def _bins(distances: Floats) -> npt.NDArray[np.intp]:
    """The last edge that each is above; not a number is above all."""
    at = np.searchsorted(EDGES, distances, side="left") - 1
    return np.where(np.isnan(distances), len(EDGES) - 1, np.maximum(at, 0))


def _rms(gaps_T: Floats, noise: float) -> float:
    return float(np.sqrt(np.mean(np.minimum(np.abs(gaps_T) / noise, MAX_GAP) ** 2)))


def _units(parts: Sequence[Floats]) -> Iterator[Floats]:
    """Values of all answers, end to end, in stretches of UNIT or somewhat more."""
    values = _joined(parts)
    if len(values) >= MIN_UNIT:
        yield from np.array_split(values, max(1, len(values) // UNIT))


def _follows(gaps_T: Floats, shift_T: Floats, noise: float) -> float:
    """log of what a stake wins that pays 2 / (1 + e^-2x), where x is how well gaps follow the shift beyond the share
    that may be honest; the rest of what there is is kept.

    If x is as likely to be +a as -a, this pays 1 on average; if it tends to be lower, less.
    """
    bound = MAX_GAP * noise
    gaps, shift = (np.clip(np.nan_to_num(x_T, nan=bound), -bound, bound) for x_T in (gaps_T, shift_T))
    x = (1 - HONEST_SHARE) * float(((gaps - HONEST_SHARE * shift) * shift).sum()) / noise**2
    paid = np.log(2) - np.logaddexp(0.0, -2 * x)
    return float(np.logaddexp(np.log(SHIFT_STAKE) + paid, np.log(1 - SHIFT_STAKE)))


def histograms(answers: Sequence[Observed], noise: Noise) -> tuple[Histogram, Histogram, Histogram]:
    """What an honest way's answers add to the rates: gaps of units, shortfalls of tokens, distances of chunks."""
    units = np.array([_rms(gaps_U, noise.gap) for gaps_U in _units([answer.gaps_T for answer in answers])])
    short_T = _joined([answer.shortfalls_T for answer in answers]) / noise.gap
    close = float(_joined([answer.close_T for answer in answers]).sum()) * noise.gap
    chunks_C = _joined([answer.chunks_C for answer in answers]) / noise.mantissa
    return Histogram.of(units), Histogram.of(short_T[short_T > 0], close), Histogram.of(chunks_C)
