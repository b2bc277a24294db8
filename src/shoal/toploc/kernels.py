"""Finite-field kernels of proofs (Montgomery arithmetic, interpolation), compiled at first use by numba.

The prime is below 2^16, so a product modulo it is four 16-bit multiplications in Montgomery form, which a processor
does sixteen or thirty-two at a time. What works on many values at once is written as vectors (`_VECTOR`), not as loops
that a compiler may or may not vectorise; LLVM fits the vectors to the machine. Arrays are padded by one vector: what is
computed in the padding is never read.

All of it stays in one file on purpose: numba's cache notices a change of the file a function is in, and of no other.
"""

# numba and llvmlite carry no types; what is exported is typed again in proofs.py.
# mypy: ignore-errors

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.numba_cache import kept

PRIME = 65497
MIN_MODULUS = 32769
MAGNITUDE = 0x7FFF
INFINITE = 0x7F80
# Chunks of one text are alike: the k-th largest magnitude of the next is rarely further below this one's.
SEED_MARGIN = 6
# Fewer values of one dimension, sign and exponent say too little about what is typical of it.
MIN_REPEATS = 4
# What the published package reports as the error where no exponent agrees.
UNKNOWN_ERROR = 2.0**64

OK, BAD_MODULUS, BAD_COEFFICIENT, NOT_FINITE, NO_MODULUS = range(5)

LANES = 32
SCANNED = 64

_RADIX = 1 << 16
_PRIME_INVERSE = pow(PRIME, -1, _RADIX)
_RADIX_SQUARED = _RADIX * _RADIX % PRIME
_ONE = _RADIX % PRIME

_I1, _I16, _I32 = ir.IntType(1), ir.IntType(16), ir.IntType(32)
_VECTOR = ir.VectorType(_I16, LANES)
_SCAN = ir.VectorType(_I16, SCANNED)


def inverse_table() -> np.ndarray:
    """The inverse of every residue but 0, from and to Montgomery form."""
    inverses = np.zeros(PRIME, dtype=np.int64)
    inverses[1] = 1
    for i in range(2, PRIME):
        inverses[i] = -(PRIME // i) * inverses[PRIME % i] % PRIME
    return (inverses * _RADIX_SQUARED % PRIME).astype(np.uint16)


def _constant(kind, value):
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _everywhere(builder, kind, value):
    nothing = ir.Constant(kind, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(builder.insert_element(nothing, value, ir.Constant(_I32, 0)), nothing, zeros)


def _pointer(context, builder, array_type, array, start, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())


def _high_half(builder, a, b):
    wide = ir.VectorType(_I32, a.type.count) if isinstance(a.type, ir.VectorType) else _I32
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, _constant(wide, 16)), a.type)


def _minus(builder, a, b):
    """a - b modulo the prime; b may be the prime itself.

    The borrow is asked for by name: a comparison of two high halves LLVM would widen to 32 bits, at twice the time.
    """
    vector = isinstance(a.type, ir.VectorType)
    kind, name = (ir.VectorType(_I1, LANES), f"v{LANES}i16") if vector else (_I1, "i16")
    result = ir.LiteralStructType([a.type, kind])
    subtract = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, [a.type, a.type]), f"llvm.usub.with.overflow.{name}"
    )
    both = builder.call(subtract, [a, b])
    difference, borrowed = builder.extract_value(both, 0), builder.extract_value(both, 1)
    return builder.select(borrowed, builder.add(difference, _constant(a.type, PRIME)), difference)


def _times(builder, a, b):
    """a * b / 2^16 modulo the prime, for a < 2^16 and b < prime: Montgomery's product."""
    quotient = builder.mul(builder.mul(a, b), _constant(a.type, _PRIME_INVERSE))
    return _minus(builder, _high_half(builder, a, b), _high_half(builder, quotient, _constant(a.type, PRIME)))


@intrinsic
def times(typing, a, b):  # noqa: ARG001
    def codegen(context, builder, signature, args):  # noqa: ARG001
        return _times(builder, *args)

    return types.uint16(types.uint16, types.uint16), codegen


@intrinsic
def pass_point(typing, x, y, product, start, at, step):  # noqa: ARG001
    """y -= step * product, then product *= x - at, in the vector from `start`."""

    def codegen(context, builder, signature, args):
        x, y, product = (_pointer(context, builder, signature.args[i], args[i], args[3], _VECTOR) for i in range(3))
        at, step = (_everywhere(builder, _VECTOR, value) for value in args[4:])
        products = builder.load(product, align=2)
        builder.store(_minus(builder, builder.load(y, align=2), _times(builder, step, products)), y, align=2)
        builder.store(_times(builder, _minus(builder, builder.load(x, align=2), at), products), product, align=2)

    return types.void(x, y, product, types.intp, types.uint16, types.uint16), codegen


@intrinsic
def unfold(typing, coefficients, start, at):  # noqa: ARG001
    """Subtracts at * (the next coefficient) from each coefficient in the vector from `start`."""

    def codegen(context, builder, signature, args):
        here = _pointer(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        after = builder.add(args[1], ir.Constant(args[1].type, 1))
        following = builder.load(_pointer(context, builder, signature.args[0], args[0], after, _VECTOR), align=2)
        product = _times(builder, _everywhere(builder, _VECTOR, args[2]), following)
        builder.store(_minus(builder, builder.load(here, align=2), product), here, align=2)

    return types.void(coefficients, types.intp, types.uint16), codegen


@intrinsic
def horner(typing, values, x, start, negated):  # noqa: ARG001
    """values = values * x - negated, in the vector from `start`."""

    def codegen(context, builder, signature, args):
        values, x = (_pointer(context, builder, signature.args[i], args[i], args[2], _VECTOR) for i in range(2))
        product = _times(builder, builder.load(values, align=2), builder.load(x, align=2))
        builder.store(_minus(builder, product, _everywhere(builder, _VECTOR, args[3])), values, align=2)

    return types.void(values, x, types.intp, types.uint16), codegen


@intrinsic
def join(typing, values, odd, x, start):  # noqa: ARG001
    """values = odd * x - values, in the vector from `start`."""

    def codegen(context, builder, signature, args):
        values, odd, x = (_pointer(context, builder, signature.args[i], args[i], args[3], _VECTOR) for i in range(3))
        product = _times(builder, builder.load(odd, align=2), builder.load(x, align=2))
        builder.store(_minus(builder, product, builder.load(values, align=2)), values, align=2)

    return types.void(values, odd, x, types.intp), codegen


def _magnitudes(context, builder, signature, args):
    pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _SCAN)
    return builder.and_(builder.load(pointer, align=2), _constant(_SCAN, MAGNITUDE))


@intrinsic
def reaching(typing, bits, start, bound):  # noqa: ARG001
    """Which of the `SCANNED` values from `start` have at least the magnitude `bound`: one bit each."""

    def codegen(context, builder, signature, args):
        magnitudes = _magnitudes(context, builder, signature, args)
        reached = builder.icmp_unsigned(">=", magnitudes, _everywhere(builder, _SCAN, args[2]))
        return builder.bitcast(reached, ir.IntType(SCANNED))

    return types.uint64(bits, types.intp, types.uint16), codegen


@intrinsic
def largest(typing, bits, start):  # noqa: ARG001
    """The largest magnitude of the `SCANNED` values from `start`."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I16, [_SCAN])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.umax.v{SCANNED}i16")
        return builder.call(reduce, [_magnitudes(context, builder, signature, args)])

    return types.uint16(bits, types.intp), codegen


@intrinsic
def lowest_bit(typing, mask):  # noqa: ARG001
    """The position of the lowest bit that is set; one must be."""

    def codegen(context, builder, signature, args):  # noqa: ARG001
        return builder.cttz(args[0], ir.Constant(_I1, 1))

    return types.intp(types.uint64), codegen


@numba.njit
def _collect(bits, start, count, bound, found):
    """Writes the positions of all values of at least `bound`, in order; says how many there are."""
    n = 0
    whole = count // SCANNED * SCANNED
    for first in range(0, whole, SCANNED):
        mask = reaching(bits, start + first, bound)
        while mask:
            found[n] = first + lowest_bit(mask)
            n += 1
            mask &= mask - np.uint64(1)
    for i in range(whole, count):
        if (bits[start + i] & MAGNITUDE) >= bound:
            found[n] = i
            n += 1
    return n


@numba.njit
def _safe_bound(bits, start, count, k):
    """A magnitude that at least k values reach: the least of the maxima of k blocks that do not overlap."""
    per_block = count // k // SCANNED
    if per_block == 0:
        return 0
    bound = MAGNITUDE
    for block in range(k):
        most = 0
        for part in range(per_block):
            most = max(most, np.int64(largest(bits, start + (block * per_block + part) * SCANNED)))
        bound = min(bound, most)
    return bound


@numba.njit
def _kth(bits, start, found, n, k, bound, tally):
    """The k-th largest magnitude among the n found, all of at least `bound`, and how many are larger."""
    # A good bound is just below: counting up from it, all further ones in the last place, ends soon.
    tally[:] = 0
    for i in range(n):
        tally[min(np.int64(bits[start + found[i]] & MAGNITUDE) - bound, 255)] += 1
    below = 0
    step = 0
    while step < 255 and below + tally[step] <= n - k:
        below += tally[step]
        step += 1
    if step < 255:
        return bound + step, n - below - tally[step]
    # Else by exponent, then by mantissa.
    tally[:] = 0
    for i in range(n):
        tally[(bits[start + found[i]] & MAGNITUDE) >> 7] += 1
    above = 0
    exponent = 255
    while above + tally[exponent] < k:
        above += tally[exponent]
        exponent -= 1
    tally[:128] = 0
    for i in range(n):
        magnitude = bits[start + found[i]] & MAGNITUDE
        if magnitude >> 7 == exponent:
            tally[magnitude & 127] += 1
    mantissa = 127
    while above + tally[mantissa] < k:
        above += tally[mantissa]
        mantissa -= 1
    return exponent * 128 + mantissa, above


@numba.njit
def _top(bits, start, count, k, seed, found, tally):
    """Leaves the positions of the k values of largest magnitude in `found`, in order; returns the least magnitude.

    Of equal values at the last rank those of lowest position are taken. `seed` is a guess of the k-th magnitude: a good
    one makes it one pass, a bad one costs a second.
    """
    bound = max(seed, 0)
    n = _collect(bits, start, count, np.uint16(bound), found) if seed > 0 else 0
    if n < k:
        bound = _safe_bound(bits, start, count, k)
        n = _collect(bits, start, count, np.uint16(bound), found)
    last, above = _kth(bits, start, found, n, k, bound, tally)
    ties = k - above
    taken = 0
    for i in range(n):  # no branches: which way they would go cannot be predicted
        position = found[i]
        magnitude = np.int64(bits[start + position] & MAGNITUDE)
        tie = magnitude == last
        found[taken] = position
        taken += (magnitude > last) | (tie & (ties > 0))
        ties -= tie
    return last


@numba.njit
def _finite(bits, start, found, n):
    """Whether the largest values are finite; if they are, all are."""
    finite = True
    for i in range(n):
        finite &= (bits[start + found[i]] & MAGNITUDE) < INFINITE
    return finite


@numba.njit
def _collisions(found, n, modulus, seen):
    """How many positions fall on a remainder that an earlier one has taken; leaves `seen` clear."""
    collisions = 0
    for i in range(n):
        remainder = np.uint32(found[i]) % np.uint32(modulus)
        collisions += seen[remainder]
        seen[remainder] = 1
    for i in range(n):
        seen[np.uint32(found[i]) % np.uint32(modulus)] = 0
    return collisions


@numba.njit
def _separating(found, n, count, seen):
    """The largest modulus under which no two positions coincide, or 0 where none is large enough."""
    if count <= PRIME:
        return PRIME
    for modulus in range(PRIME, MIN_MODULUS - 1, -1):
        if _collisions(found, n, modulus, seen) == 0:
            return modulus
    return 0


@numba.njit
def _interpolate(x, y, n, inverses, product, coefficients):
    """The coefficients, lowest first, of the polynomial of degree below n through the points; x in Montgomery form.

    Newton's form first, point by point: `y` holds what is left to explain at the points to come, `product` the product
    of their distances to the points passed. Only one inverse per point is looked up. Then the form is unfolded in
    place.
    """
    product[:] = _ONE
    for i in range(n):
        step = times(y[i], inverses[product[i]])
        coefficients[i] = step
        for first in range(i + 1, n, LANES):
            pass_point(x, y, product, first, x[i], step)
    coefficients[n:] = 0
    for i in range(n - 2, -1, -1):
        for first in range(i, n - 1, LANES):
            unfold(coefficients, first, x[i])


@numba.njit
def _residues(found, n, modulus, x):
    """The remainders of the positions, in Montgomery form."""
    for i in range(n):
        x[i] = times(np.uint16(np.uint32(found[i]) % np.uint32(modulus)), np.uint16(_RADIX_SQUARED))


@numba.njit
def _write(proofs, at, modulus, coefficients, n):
    proofs[at] = modulus >> 8
    proofs[at + 1] = modulus & 255
    for i in range(n):
        proofs[at + 2 + 2 * i] = coefficients[i] >> 8
        proofs[at + 3 + 2 * i] = coefficients[i] & 255


_BITS = types.Array(types.uint16, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@kept(types.UniTuple(types.int64, 2)(_BITS, types.int64, types.int64, _BITS, types.uint8[::1]))
def build(bits, per_chunk, k, inverses, proofs):
    """Writes the proofs of all chunks; returns OK, or what is wrong and in which chunk."""
    most = min(k, per_chunk)
    found = np.empty(per_chunk, np.int32)
    tally = np.empty(256, np.int32)
    seen = np.zeros(PRIME, np.uint8)
    x = np.zeros(most + LANES, np.uint16)
    y = np.zeros(most + LANES, np.uint16)
    product = np.zeros(most + LANES, np.uint16)
    coefficients = np.zeros(most + LANES + 1, np.uint16)
    seed = 0
    at = 0
    for chunk in range((bits.size + per_chunk - 1) // per_chunk):
        start = chunk * per_chunk
        count = min(per_chunk, bits.size - start)
        n = min(k, count)
        seed = _top(bits, start, count, n, seed, found, tally) - SEED_MARGIN
        if not _finite(bits, start, found, n):
            return NOT_FINITE, chunk
        modulus = _separating(found, n, count, seen)
        if modulus == 0:
            return NO_MODULUS, chunk
        _residues(found, n, modulus, x)
        for i in range(n):
            y[i] = bits[start + found[i]]
        _interpolate(x, y, n, inverses, product, coefficients)
        _write(proofs, at, modulus, coefficients, n)
        at += 2 + 2 * n
    return OK, 0


@kept(types.int64(types.Array(types.int32, 1, "C", readonly=True), _BITS, types.int64, _BITS, types.uint8[::1]))
def build_from_top(found, values, count, inverses, proof):
    """Writes the proof of one chunk of `count` values of which the largest were found already; returns OK or what is
    wrong."""
    n = found.size
    seen = np.zeros(PRIME, np.uint8)
    x = np.zeros(n + LANES, np.uint16)
    y = np.zeros(n + LANES, np.uint16)
    product = np.zeros(n + LANES, np.uint16)
    coefficients = np.zeros(n + LANES + 1, np.uint16)
    for i in range(n):
        if (values[i] & MAGNITUDE) >= INFINITE:
            return NOT_FINITE
        y[i] = values[i]
    modulus = _separating(found, n, count, seen)
    if modulus == 0:
        return NO_MODULUS
    _residues(found, n, modulus, x)
    _interpolate(x, y, n, inverses, product, coefficients)
    _write(proof, 0, modulus, coefficients, n)
    return OK


@numba.njit
def _read(proofs, at, n, count, coefficients):
    """Reads one proof; returns what is wrong with it, its modulus and its degree (0 for a constant)."""
    modulus = np.int64(proofs[at]) << 8 | np.int64(proofs[at + 1])
    degree = 0
    status = OK
    coefficients[n] = 0
    for i in range(n):
        coefficient = np.int64(proofs[at + 2 + 2 * i]) << 8 | np.int64(proofs[at + 3 + 2 * i])
        coefficients[i] = coefficient
        if coefficient >= PRIME:
            status = BAD_COEFFICIENT
        if coefficient > 0:
            degree = i
    if modulus < MIN_MODULUS or modulus > PRIME or (count <= PRIME and modulus != PRIME):
        status = BAD_MODULUS
    return status, modulus, degree


@numba.njit
def _evaluate(coefficients, x, n, squares, odd, values):
    """The polynomial's values at all points at once: even and odd powers apart, so that neither waits for the other."""
    values[:] = 0
    odd[:] = 0
    for i in range(n):
        squares[i] = times(x[i], x[i])
    for i in range((n - 1) // 2 * 2, -1, -2):
        for first in range(0, n, LANES):
            horner(values, squares, first, coefficients[i])
            horner(odd, squares, first, np.uint16(PRIME - coefficients[i + 1]))
    for first in range(0, n, LANES):
        join(values, odd, x, first)


@numba.njit
def _slot(table, key):
    """Where `key` is in an open hash table whose size is a power of two, or where it belongs."""
    last = table.size - 1
    slot = (key * 0x9E3779B1 >> 12) & last
    while table[slot] != -1 and table[slot] != key:
        slot = (slot + 1) & last
    return slot


@numba.njit
def _guesses(bits, start, found, n, hidden, values, table, slots, repeats, sums):
    """Mean errors, in the last bit, at values whose dimension, sign and exponent recur in the chunk: (how many, of a
    guess, of the proof). The guess is the mean of the others of that dimension: all that one knows without computing.
    """
    table[:] = -1
    repeats[:] = 0
    sums[:] = 0
    for i in range(n):
        own = np.int64(bits[start + found[i]])
        dimension = np.int64(np.uint32(found[i]) % np.uint32(hidden))
        slots[i] = slot = _slot(table, dimension << 9 | own >> 7)
        table[slot] = dimension << 9 | own >> 7
        repeats[slot] += 1
        sums[slot] += own & 127
    judged = 0
    guess = 0.0
    proof = 0
    for i in range(n):
        own = np.int64(bits[start + found[i]])
        others = repeats[slots[i]] - 1
        if others + 1 >= MIN_REPEATS and own >> 7 == np.int64(values[i]) >> 7:
            judged += 1
            guess += abs((own & 127) - (sums[slots[i]] - (own & 127)) / others)
            proof += abs(np.int64(values[i]) - own)
    if judged == 0:
        return 0, 0.0, 0.0
    return judged, guess / judged, proof / judged


@numba.njit
def _compare(bits, start, found, n, values, tally):
    """Exponent mismatches, sign mismatches among the rest, and mean and upper median of their mantissa errors."""
    tally[:128] = 0
    agreeing = 0
    signs = 0
    total = 0
    for i in range(n):
        own = np.int64(bits[start + found[i]])
        claimed = np.int64(values[i])
        if (own ^ claimed) & INFINITE == 0:
            error = abs((own & 127) - (claimed & 127))
            agreeing += 1
            total += error
            tally[error] += 1
            signs += (own ^ claimed) >> 15
    if agreeing == 0:
        return n, 0, UNKNOWN_ERROR, UNKNOWN_ERROR
    median = 0
    below = tally[0]
    while below <= agreeing // 2:
        median += 1
        below += tally[median]
    return n - agreeing, signs, total / agreeing, float(median)


@kept(
    types.UniTuple(types.int64, 2)(
        _BITS, types.int64, types.int64, types.int64, _BYTES, types.int64[:, ::1], types.float64[:, ::1]
    )
)
def verify(bits, hidden, per_chunk, k, proofs, counts, errors):
    """Writes one row per chunk; returns OK, or what is wrong with the states and in which chunk.

    counts: status, points, degree, collisions, exponent mismatches, sign mismatches, values judged against a guess;
    errors: mantissa mean, mantissa median, of the guess, of the proof.
    """
    most = min(k, per_chunk)
    size = 4
    while size < 4 * most:
        size *= 2
    found = np.empty(per_chunk, np.int32)
    tally = np.empty(256, np.int32)
    seen = np.zeros(_RADIX, np.uint8)
    x = np.zeros(most + LANES, np.uint16)
    squares = np.zeros(most + LANES, np.uint16)
    odd = np.zeros(most + LANES, np.uint16)
    values = np.zeros(most + LANES, np.uint16)
    coefficients = np.zeros(most + 1, np.uint16)
    table = np.empty(size, np.int64)
    slots = np.empty(most, np.int64)
    repeats = np.empty(size, np.int32)
    sums = np.empty(size, np.int32)
    seed = 0
    at = 0
    for chunk in range((bits.size + per_chunk - 1) // per_chunk):
        start = chunk * per_chunk
        count = min(per_chunk, bits.size - start)
        n = min(k, count)
        seed = _top(bits, start, count, n, seed, found, tally) - SEED_MARGIN
        if not _finite(bits, start, found, n):
            return NOT_FINITE, chunk
        status, modulus, degree = _read(proofs, at, n, count, coefficients)
        at += 2 + 2 * n
        counts[chunk, 0] = status
        counts[chunk, 1] = n
        counts[chunk, 2] = degree
        if status != OK:
            continue
        if count > modulus:
            counts[chunk, 3] = _collisions(found, n, modulus, seen)
        _residues(found, n, modulus, x)
        _evaluate(coefficients, x, n, squares, odd, values)
        counts[chunk, 4], counts[chunk, 5], errors[chunk, 0], errors[chunk, 1] = _compare(
            bits, start, found, n, values, tally
        )
        counts[chunk, 6], errors[chunk, 2], errors[chunk, 3] = _guesses(
            bits, start, found, n, hidden, values, table, slots, repeats, sums
        )
    return OK, 0
