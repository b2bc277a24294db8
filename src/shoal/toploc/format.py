"""Wire format of a proof: a modulus and the coefficients of a polynomial, big-endian, two bytes each.

The polynomial, over the field of `PRIME` elements, maps (position modulo the modulus) to the 16 bits of the value
there, for the k values of largest magnitude of a chunk. A chunk of fewer than k values has one point per value. No
lengths are written: they follow from the shape of the states.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shoal.errors import ToplocError

PRIME = 65497
# Every honest modulus is above this: the largest that separates the points is taken, starting from PRIME.
MODULUS_ABOVE = 32768


@dataclass(frozen=True, slots=True)
class Proof:
    """One chunk's polynomial, lowest coefficient first."""

    modulus: int
    coefficients: tuple[int, ...]

    @property
    def degree(self) -> int:
        """0 for a constant, zero included."""
        return max((i for i, coefficient in enumerate(self.coefficients) if coefficient), default=0)

    def __call__(self, position: int) -> int:
        """The 16 bits claimed for the value at a position in the chunk."""
        value = 0
        for coefficient in reversed(self.coefficients):
            value = (value * (position % self.modulus) + coefficient) % PRIME
        return value


def chunk_points(tokens: int, hidden: int, chunk: int, k: int) -> list[int]:
    """How many points each chunk's proof has; only the last chunk may differ."""
    whole, rest = divmod(tokens, chunk)
    return [min(k, chunk * hidden)] * whole + ([min(k, rest * hidden)] if rest else [])


def proof_size(tokens: int, hidden: int, chunk: int = 32, k: int = 128) -> int:
    """How many bytes the proofs of so many tokens have, all chunks together."""
    if min(tokens, hidden, chunk, k) < 1:
        raise ToplocError(f"tokens {tokens}, hidden {hidden}, chunk {chunk}, k {k}: each must be at least 1")
    return sum(2 + 2 * points for points in chunk_points(tokens, hidden, chunk, k))


def encode(proofs: Iterable[Proof]) -> bytes:
    """The bytes of proofs, one after another."""
    numbers: list[int] = []
    for i, proof in enumerate(proofs):
        _check(i, proof)
        numbers += [proof.modulus, *proof.coefficients]
    return np.array(numbers, dtype=">u2").tobytes()


def decode(data: bytes, points: int = 128) -> list[Proof]:
    """The proofs in the bytes, `points` coefficients each save the last, which may have fewer.

    Raises `ToplocError` on anything that no honest builder makes. To judge bytes that come from outside, give them to
    `verify`: it answers with a reject instead.
    """
    if points < 1:
        raise ToplocError(f"points {points}: a proof has at least one")
    if len(data) % 2 or len(data) % (2 + 2 * points) == 2:
        raise ToplocError(
            f"{len(data)} bytes do not split into proofs of {2 + 2 * points} bytes, of which the last may be shorter"
        )
    numbers = np.frombuffer(data, dtype=">u2").tolist()
    size = 1 + points
    proofs = [Proof(numbers[at], tuple(numbers[at + 1 : at + size])) for at in range(0, len(numbers), size)]
    for i, proof in enumerate(proofs):
        _check(i, proof)
    return proofs


def _check(i: int, proof: Proof) -> None:
    if not MODULUS_ABOVE < proof.modulus <= PRIME:
        raise ToplocError(f"proof {i}: modulus {proof.modulus} is not in {MODULUS_ABOVE + 1}..{PRIME}")
    if not proof.coefficients:
        raise ToplocError(f"proof {i}: it has no coefficients")
    if not all(0 <= coefficient < PRIME for coefficient in proof.coefficients):
        raise ToplocError(f"proof {i}: a coefficient is not in 0..{PRIME - 1}")
