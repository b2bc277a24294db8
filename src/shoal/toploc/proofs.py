"""Build and verify proofs: the API around the kernels.

States are the caller's own: what is wrong with them is a `ToplocError`. Proofs come from outside: what is wrong with
them is a result that is rejected, one for every chunk of the states, so that none is ever skipped.
"""

import operator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ToplocError
from shoal.toploc.format import PRIME, chunk_points, proof_size
from shoal.toploc.hidden_states import Bits, as_bits
from shoal.toploc.verdict import ChunkResult, Malformed

if TYPE_CHECKING:
    from shoal.toploc.hidden_states import States

# An honest polynomial's highest coefficient is 0 once in 65,497 chunks. Three in a row are, once in 3e14.
SPARE_DEGREES = 2
MAX_VALUES = 2**31 - 1
UNKNOWN_ERROR = 2.0**64


def build(states: "States", chunk: int = 32, k: int = 128) -> bytes:
    """The proofs of all chunks of `chunk` tokens, the last perhaps shorter, over the k values of largest magnitude.

    Of values of one magnitude at the last rank those of lowest position are taken: first by token, then by dimension.
    """
    bits_TH = as_bits(states)
    tokens, hidden = bits_TH.shape
    chunk, k = _checked(chunk, hidden, k)
    kernels, inverses = _compiled()
    proofs = np.empty(proof_size(tokens, hidden, chunk, k), np.uint8)
    # A chunk longer than the text is the text: the kernels keep room for one whole chunk.
    status, at = kernels.build(bits_TH.reshape(-1), min(chunk, tokens) * hidden, k, inverses, proofs)
    _check_states(kernels, status, at, k)
    return proofs.tobytes()


def build_from_top(positions: NDArray[np.int32], bits: NDArray[np.uint16], count: int) -> bytes:
    """The proof of one chunk of `count` values, from positions and bf16 bits of those of largest magnitude, found
    elsewhere, as on the device that computed them; the bytes are those of `build` on the chunk.

    Nobody looks at the other values: that these are the largest, and the first of equals, is the caller's to ensure.
    """
    positions, bits = np.ascontiguousarray(positions, np.int32), np.ascontiguousarray(bits, np.uint16)
    if positions.ndim != 1 or positions.shape != bits.shape or not 0 < positions.size <= min(count, PRIME):
        raise ToplocError(
            f"positions of shape {positions.shape}, values of shape {bits.shape} in a chunk of {count} values; "
            "give one value per position, at least one and at most as many as the chunk has"
        )
    if positions.min() < 0 or positions.max() >= count or len(np.unique(positions)) < positions.size:
        raise ToplocError(
            f"positions {positions.min()} to {positions.max()} in a chunk of {count} values; each must be "
            "in the chunk, and given once"
        )
    kernels, inverses = _compiled()
    proof = np.empty(2 + 2 * positions.size, np.uint8)
    _check_states(kernels, kernels.build_from_top(positions, bits, count, inverses, proof), 0, positions.size)
    return proof.tobytes()


def verify(states: "States", proofs: bytes, chunk: int = 32, k: int = 128) -> list[ChunkResult]:
    """One result per chunk of the verifier's own states; give them to `accepts`."""
    bits_TH = as_bits(states)
    tokens, hidden = bits_TH.shape
    chunk, k = _checked(chunk, hidden, k)
    if not isinstance(proofs, (bytes, bytearray, memoryview)):
        raise ToplocError(f"proofs are of type {type(proofs).__name__}; give the bytes of all chunks in a row")
    claimed = np.frombuffer(bytes(proofs), np.uint8)
    points = chunk_points(tokens, hidden, chunk, k)
    kernels, _ = _compiled()
    if claimed.size != proof_size(tokens, hidden, chunk, k):
        if ((bits_TH & kernels.MAGNITUDE) >= kernels.INFINITE).any():
            raise ToplocError("states hold NaN or infinite values")
        return [_malformed(i, n, "length") for i, n in enumerate(points)]
    counts = np.zeros((len(points), 7), np.int64)
    errors = np.zeros((len(points), 4), np.float64)
    status, at = kernels.verify(bits_TH.reshape(-1), hidden, min(chunk, tokens) * hidden, k, claimed, counts, errors)
    _check_states(kernels, status, at, k)
    reasons: dict[int, Malformed] = {kernels.BAD_MODULUS: "modulus", kernels.BAD_COEFFICIENT: "coefficient"}
    results = []
    for i, (number, error) in enumerate(zip(counts.tolist(), errors.tolist(), strict=True)):
        status, n, degree, collisions, exponents, signs, guessed = number
        if status != kernels.OK:
            results.append(_malformed(i, n, reasons[status]))
        elif degree < n - 1 - SPARE_DEGREES and degree < _own_degree(bits_TH[i * chunk : (i + 1) * chunk], k):
            results.append(_malformed(i, n, "degree"))
        else:
            results.append(
                ChunkResult(i, None, n, exponents, error[0], error[1], signs, collisions, guessed, *error[2:])
            )
    return results


def _own_degree(bits_TH: Bits, k: int) -> int:
    """The degree of the verifier's own polynomial. It is low for states that hardly differ, such as all zeros: only
    there may a proof's be."""
    numbers = np.frombuffer(build(bits_TH, len(bits_TH), k), dtype=">u2")[1:]
    return int(np.flatnonzero(numbers)[-1]) if numbers.any() else 0


def _malformed(chunk: int, points: int, reason: Malformed) -> ChunkResult:
    """A reject, also for a reader of the numbers alone."""
    return ChunkResult(
        chunk, reason, points, points, UNKNOWN_ERROR, UNKNOWN_ERROR, points, points, 0, 0.0, UNKNOWN_ERROR
    )


def _checked(chunk: int, hidden: int, k: int) -> tuple[int, int]:
    try:
        chunk, k = operator.index(chunk), operator.index(k)
    except TypeError:
        raise ToplocError(f"chunk is {chunk!r}, k is {k!r}; give whole numbers") from None
    if chunk < 1 or k < 1:
        raise ToplocError(f"chunk is {chunk}, k is {k}; both must be at least 1")
    if k > PRIME:
        raise ToplocError(f"k is {k}; the field has room for {PRIME} points")
    if chunk * hidden > MAX_VALUES:
        raise ToplocError(f"a chunk of {chunk} tokens of {hidden} values is too long: at most {MAX_VALUES} values")
    return chunk, k


def _check_states(kernels: Any, status: int, chunk: int, k: int) -> None:
    if status == kernels.NOT_FINITE:
        raise ToplocError(f"states hold NaN or infinite values in chunk {chunk}")
    if status == kernels.NO_MODULUS:
        raise ToplocError(f"chunk {chunk}: no modulus separates its {k} largest values; give a smaller k or chunk")


@cache
def _compiled() -> tuple[Any, NDArray[np.uint16]]:
    """The kernels and their table of inverses. numba is imported here, at first use; compiling takes seconds, once."""
    from shoal.toploc import kernels

    return kernels, kernels.inverse_table()
