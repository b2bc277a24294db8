"""Kernels over blocks of the vocabulary: sums of powers of probabilities, and the best score under a lease's noise.

One pass reads a block while it is in the processor's cache and takes all sums of it. The exponential is a polynomial
that the compiler turns into vector instructions; logarithms of sums are within 1e-6 of exact ones, where torch's own
float32 come to 2e-6.

All of it stays in one file on purpose: numba's cache notices a change of the file a function is in, and of no other.
"""

# numba carries no types; what is exported is typed again in vocabulary_sums.py.
# mypy: ignore-errors

import math

import numba
import numpy as np

from shoal.numba_cache import kept

# Sums of so many float32 terms are added up in float64.
STRETCH = 512
# A token that is this far below the best score wins only with noise that RARE bits yield, or more.
NEAR = 8.0
TWO32 = 4294967296.0
RARE = np.uint32(TWO32 * math.exp(-math.exp(-NEAR)) - 2)
LOG2_E = np.float32(1 / math.log(2))
# Below it a float32 has no whole exponent left.
LOWEST = np.float32(-126.0)
HALF, ONE = np.float32(0.5), np.float32(1.0)
BIAS, MANTISSA = np.int32(127), np.int32(23)
C6, C5, C4, C3, C2, C1 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(6, 0, -1))


@numba.njit(inline="always", fastmath={"contract"})
def exp2(x):
    """2^x for x of at most 0, to a relative 1e-7: the whole part becomes the exponent, the rest is a polynomial."""
    x = max(x, LOWEST)
    whole = np.floor(x + HALF)
    rest = x - whole
    power = ((((((C6 * rest) + C5) * rest + C4) * rest + C3) * rest + C2) * rest + C1) * rest + ONE
    return power * np.int32((np.int32(whole) + BIAS) << MANTISSA).view(np.float32)


@kept("void(f4[:,::1], f4[::1], f4[::1], f4[::1], f8[:,::1])", fastmath={"reassoc", "contract", "nsz"})
def add_powers(block_RB, peaks_R, powers_P, highest_R, sums_RP):
    """Adds a block to sums of e^(power x (logit - highest logit so far)); `peaks` are the block's highest logits."""
    for row in range(len(block_RB)):
        if peaks_R[row] > highest_R[row]:
            for p in range(len(powers_P)):
                sums_RP[row, p] *= math.exp(powers_P[p] * (float(highest_R[row]) - float(peaks_R[row])))
            highest_R[row] = peaks_R[row]
        highest = highest_R[row]
        if highest == -np.inf:
            continue
        for begin in range(0, block_RB.shape[1], STRETCH):
            stretch = block_RB[row, begin : begin + STRETCH]
            for p in range(len(powers_P)):
                times = powers_P[p] * LOG2_E
                total = np.float32(0.0)
                for v in range(len(stretch)):
                    total += exp2((stretch[v] - highest) * times)
                sums_RP[row, p] += total


@numba.njit(inline="always")
def gumbel(bits):
    return -math.log(-math.log((float(bits) + 0.5) / TWO32))


@kept("void(f4[:,::1], f4[::1], u4[:,:], i8, f8[::1], i8[::1])")
def raise_best(block_RB, peaks_R, bits_RB, first, best_R, winner_R):
    """Raises each row's best logit + noise to that of the block, if it is higher, and names the token that has it;
    `first` is the block's first one.

    Logarithms are taken for few tokens: all others are so far below the best so far that only rare noise could lift
    them above it, which an integer comparison tells. Nothing is approximated.
    """
    for row in range(len(block_RB)):
        best = best_R[row]
        if best == -np.inf:  # begin with the likeliest, so that few others come near
            for v in range(block_RB.shape[1]):
                if block_RB[row, v] == peaks_R[row]:
                    best = float(block_RB[row, v]) + gumbel(bits_RB[row, v])
                    winner_R[row] = first + v
                    break
        near = best - NEAR
        for v in range(block_RB.shape[1]):
            if block_RB[row, v] > near or bits_RB[row, v] >= RARE:
                score = float(block_RB[row, v]) + gumbel(bits_RB[row, v])
                if score > best:
                    best = score
                    winner_R[row] = first + v
                    near = best - NEAR
        best_R[row] = best
