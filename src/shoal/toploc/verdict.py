"""Acceptance thresholds: what verification finds in a chunk, and whether that is accepted.

The published verification looks at exponents and mantissas only, and three cheap forgeries pass it. Closed here are:

- *a constant polynomial* is near all values of a chunk, since the largest are of one size. It has degree 0, where an
  honest polynomial has one less than its points, and half of its signs are wrong.
- *sign-flipped states* agree in exponents and mantissas: signs are compared.
- *a dimension's usual value*, claimed for every token of it, is near the truth where a few dimensions hold all the
  large values. So the proof must beat a guess: the mean of the other values of that dimension, taken from the
  verifier's states. The same forgery with a small modulus, under which many tokens share one point, shows as positions
  that collide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

PUBLISHED_K = 128
# Fewer values that can be guessed at say nothing.
MIN_GUESSED = 16

Malformed: TypeAlias = Literal["length", "modulus", "coefficient", "degree"]


class ChunkResult(NamedTuple):
    """How one chunk's proof compares with the verifier's own states. Every number grows with the distance."""

    chunk: int
    malformed: Malformed | None
    points: int
    exponent_mismatches: int
    mantissa_mean: float  # over the points whose exponent agrees; 2^64 if there are none
    mantissa_median: float  # the upper of two, as published
    sign_mismatches: int  # among the points whose exponent agrees
    collisions: int  # points that share a remainder with another under the proof's modulus
    guessed: int  # points whose dimension, sign and exponent recur in the chunk: those that can be guessed
    guess_error: float  # mean mantissa error of the guess, at those points
    proof_error: float  # mean mantissa error of the proof, at those points


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The most an honest chunk may differ. Counts are of 128 points and are scaled, downwards, to fewer or more.

    Exponents and mantissas: the values of the published experiments with bf16. They are wide; calibrated on honest runs
    of one model they can be several times narrower, and catch more.
    """

    exponent_mismatches: int = 38
    mantissa_mean: float = 10.0
    mantissa_median: float = 8.0
    # Signs agree where exponents do, save for the few points that the prover did not have: those hold random values.
    sign_mismatches: int = 8
    # An honest proof is nearer than this share of what guessing misses. Where a guess misses by less than
    # `min_guess_error`, noise and guess cannot be told apart.
    share_of_guess: float = 0.5
    min_guess_error: float = 4.0


def refusal(result: ChunkResult, thresholds: Thresholds | None = None) -> str | None:
    """Why a chunk is rejected, with values and rule, or None if it is accepted.

    Each rule is written so that NaN breaks it.
    """
    limits = thresholds or Thresholds()
    where = f"chunk {result.chunk}"
    if result.malformed:
        return f"{where}: malformed proof: {result.malformed}"
    exponents = limits.exponent_mismatches * result.points // PUBLISHED_K
    signs = limits.sign_mismatches * result.points // PUBLISHED_K
    if not result.exponent_mismatches <= exponents:
        return f"{where}: {result.exponent_mismatches} of {result.points} exponents differ, {exponents} may"
    if not result.mantissa_mean <= limits.mantissa_mean:
        return (
            f"{where}: mantissas differ by {result.mantissa_mean:.3g} on average, {limits.mantissa_mean:g} is allowed"
        )
    if not result.mantissa_median <= limits.mantissa_median:
        return f"{where}: mantissas differ by {result.mantissa_median:g} in the median, {limits.mantissa_median:g} may"
    if not result.sign_mismatches <= signs:
        return f"{where}: {result.sign_mismatches} of {result.points} signs differ, {signs} may"
    # A prover's modulus separates its points: of two that collide, one was not among them and holds a random value.
    if not result.collisions <= exponents:
        return f"{where}: {result.collisions} of {result.points} points collide under the modulus, {exponents} may"
    if result.guessed >= MIN_GUESSED and not result.guess_error < limits.min_guess_error:
        most = limits.share_of_guess * result.guess_error
        if not result.proof_error <= most:
            return (
                f"{where}: mantissas differ by {result.proof_error:.3g} at {result.guessed} points where guessing from "
                f"the dimension's other values gives {result.guess_error:.3g}; {most:.3g} is allowed"
            )
    return None


def accepts(results: ChunkResult | Sequence[ChunkResult], thresholds: Thresholds | None = None) -> bool:
    """Whether a chunk, or every chunk of a list, is accepted; an empty list is not."""
    if isinstance(results, ChunkResult):
        return refusal(results, thresholds) is None
    return len(results) > 0 and all(refusal(result, thresholds) is None for result in results)
