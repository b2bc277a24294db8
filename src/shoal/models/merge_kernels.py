"""Adding an adapter's product to rows of a matrix, compiled by numba: the arithmetic that `merge` promises, to the bit.

A product of two float32 numbers is exact in float64, so that a processor that multiplies and adds in one instruction
gets the same sum as one that does not; the sum itself is written from left to right, which numba keeps (no `fastmath`).
The product with the scale is rounded to float32 before it is added, for the same reason.
"""

# numba carries no types; what is exported is typed again in merge.py.
# mypy: ignore-errors

import numpy as np

from shoal.numba_cache import kept

# Columns whose sums are held at once: they stay in a processor's first cache.
COLUMNS = 1024


@kept("void(float64[:], float32[:], float64[:, :], int64, int64)")
def _sums(sums, b_r, a_rc, first, last):
    """sums[c] = b[0] * a[0, c] + b[1] * a[1, c] + ..., added in this order, for columns first .. last - 1."""
    rank = a_rc.shape[0]
    width = last - first
    for c in range(width):
        sums[c] = 0.0
    r = 0
    while r + 4 <= rank:  # four terms per pass, still from left to right
        b0, b1, b2, b3 = np.float64(b_r[r]), np.float64(b_r[r + 1]), np.float64(b_r[r + 2]), np.float64(b_r[r + 3])
        a0, a1, a2, a3 = a_rc[r], a_rc[r + 1], a_rc[r + 2], a_rc[r + 3]
        for c in range(width):
            at = first + c
            sums[c] = (((sums[c] + b0 * a0[at]) + b1 * a1[at]) + b2 * a2[at]) + b3 * a3[at]
        r += 4
    while r < rank:
        b0, a0 = np.float64(b_r[r]), a_rc[r]
        for c in range(width):
            sums[c] += b0 * a0[first + c]
        r += 1


@kept("void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float64[:, ::1], float64, int64, int64)")
def add_float32(out_oc, weight_oc, b_or, a_rc, scale, first, last):
    """Rows first .. last - 1 of the merged matrix in float32."""
    sums = np.empty(COLUMNS, np.float64)
    columns = weight_oc.shape[1]
    for row in range(first, last):
        weight, out = weight_oc[row], out_oc[row]
        for start in range(0, columns, COLUMNS):
            end = min(start + COLUMNS, columns)
            _sums(sums, b_or[row], a_rc, start, end)
            for c in range(end - start):
                out[start + c] = weight[start + c] + np.float32(scale * sums[c])


@kept("void(uint16[:, ::1], uint16[:, ::1], float32[:, ::1], float64[:, ::1], float64, int64, int64)")
def add_bfloat16(out_oc, weight_oc, b_or, a_rc, scale, first, last):
    """Rows first .. last - 1 of the merged matrix in bfloat16, given and returned as bits; ties are rounded to even."""
    sums = np.empty(COLUMNS, np.float64)
    wide = np.empty(COLUMNS, np.float32)
    bits = wide.view(np.uint32)
    columns = weight_oc.shape[1]
    for row in range(first, last):
        weight, out = weight_oc[row], out_oc[row]
        for start in range(0, columns, COLUMNS):
            end = min(start + COLUMNS, columns)
            _sums(sums, b_or[row], a_rc, start, end)
            for c in range(end - start):
                bits[c] = np.uint32(weight[start + c]) << np.uint32(16)
            for c in range(end - start):
                wide[c] = wide[c] + np.float32(scale * sums[c])
            for c in range(end - start):
                half = np.uint32(0x7FFF) + ((bits[c] >> np.uint32(16)) & np.uint32(1))
                out[start + c] = np.uint16((bits[c] + half) >> np.uint32(16))
