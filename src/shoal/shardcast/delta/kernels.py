"""Bit-level codec (Rice and exponential-Golomb codes) for the steps between bf16 blocks, compiled by numba at first
use.

The optimizer moves every weight by about the same amount, so how likely a value is to change follows from its
exponent, which the reader of a delta knows. A block's values fall into classes by the exponent that they had; in each
class the gaps between changed values, counted in values of that class, are Rice-coded.

    block      4 bits: classes; then each class
    class      8 bits: its highest exponent, its lowest follows the class before; 20: changes; if there are any,
               5: Rice parameter, 20: exceptions; if there are any, 5: Rice parameter, 5: Golomb parameter, 16: least
               step; then each change
    change     gap; 1 bit: up; if it is an exception, what its step exceeds the least one by
    exception  a change by more than one step; which changes are exceptions is told by gaps, each ahead of the changes

Steps are counted in the order of the values (`ordered`), modulo 2^16. Bits fill bytes from the lowest on.

Nothing read from a delta is believed: numba checks no bounds, so every place is checked here before it is used. All of
it stays in one file on purpose: numba's cache notices a change of the file a function is in, and of no other.
"""

# numba and llvmlite carry no types; what is exported is typed again in delta_blocks.py.
# mypy: ignore-errors

import math

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.numba_cache import kept

# Values in a block: classes and parameters follow local statistics, and a block stays in a processor's cache.
BLOCK = 1 << 18
# Arrays are read in groups of so many values: they must be padded to whole groups.
GROUP = 64
# More cost a pass each when a block is read, and save nothing that can be measured.
MAX_CLASSES = 4
# Bytes that may be read or written past the end of what is used.
SLACK = 64

OK, TRUNCATED, MALFORMED, TOO_LONG = 0, -1, -2, -3

COUNT_BITS = 20
# A quotient that long is rarer than its escape is costly.
ESCAPE = 24
# Classes are settled on a part of the values; every so many groups of a large block.
SAMPLED = 4
# Bits of a class header with exceptions.
CLASS_COST = 80.0

_I16, _I64 = ir.IntType(16), ir.IntType(64)
_VECTOR = ir.VectorType(_I16, GROUP)

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def _everywhere(builder, value):
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), GROUP), [0] * GROUP)
    return builder.shuffle_vector(
        builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0)), nothing, zeros
    )


def _pointer(context, builder, array_type, array, start, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())


@intrinsic
def differing(typing, a, b, start):  # noqa: ARG001
    """Which of the `GROUP` values from `start` are not the same: one bit each."""

    def codegen(context, builder, signature, args):
        a, b = (
            builder.load(_pointer(context, builder, signature.args[i], args[i], args[2], _VECTOR), align=2)
            for i in range(2)
        )
        return builder.bitcast(builder.icmp_unsigned("!=", a, b), _I64)

    return types.uint64(a, b, types.intp), codegen


@intrinsic
def members(typing, a, start, low, span):  # noqa: ARG001
    """Which of the `GROUP` values from `start` have a magnitude in low .. low + span: one bit each."""

    def codegen(context, builder, signature, args):
        values = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], _VECTOR), align=2)
        magnitudes = builder.and_(values, ir.Constant(_VECTOR, [0x7FFF] * GROUP))
        above = builder.sub(magnitudes, _everywhere(builder, args[2]))
        return builder.bitcast(builder.icmp_unsigned("<=", above, _everywhere(builder, args[3])), _I64)

    return types.uint64(a, types.intp, types.uint16, types.uint16), codegen


@intrinsic
def lowest_bit(typing, mask):  # noqa: ARG001
    """The position of the lowest bit that is set; 64 if none is."""

    def codegen(context, builder, signature, args):  # noqa: ARG001
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), codegen


@intrinsic
def bits_set(typing, mask):  # noqa: ARG001
    def codegen(context, builder, signature, args):  # noqa: ARG001
        kind = ir.FunctionType(_I64, [_I64])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.ctpop.i64"), args)

    return types.intp(types.uint64), codegen


@intrinsic
def load_word(typing, data, start):  # noqa: ARG001
    """The eight bytes from `start`, lowest first."""

    def codegen(context, builder, signature, args):
        return builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], _I64), align=1)

    return types.uint64(data, types.intp), codegen


@intrinsic
def store_word(typing, data, start, word):  # noqa: ARG001
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _I64)
        builder.store(args[2], pointer, align=1)

    return types.void(data, types.intp, types.uint64), codegen


@numba.njit
def ordered(bits):
    """A value's place among all 65,536 in the order of the reals, NaNs at both ends, -0.0 just below 0.0."""
    return bits ^ (np.uint16(0xFFFF) if bits & np.uint16(0x8000) else np.uint16(0x8000))


@numba.njit
def value_at(place):
    """The value at a place: the inverse of `ordered`."""
    return place ^ (np.uint16(0x8000) if place & np.uint16(0x8000) else np.uint16(0xFFFF))


@numba.njit
def _within(count, start):
    """Bits of a group's values that belong to the block."""
    return _ALL if count - start >= GROUP else (_ONE << np.uint64(count - start)) - _ONE


@numba.njit
def _select(mask, n):
    """The position of bit number n among those that are set; more than n must be."""
    at = 0
    rest = mask
    width = 32
    while width:
        low = bits_set(rest & ((_ONE << np.uint64(width)) - _ONE))
        beyond = n >= low
        n -= low if beyond else 0
        at += width if beyond else 0
        rest >>= np.uint64(width if beyond else 0)
        width >>= 1
    return at


# A writer is (place, word, bits): whole bytes of `word` are out, up to seven of its bits are kept for the next.
@numba.njit
def _put(out, at, word, held, value, width):
    """Writes at most 56 bits."""
    word |= np.uint64(value) << np.uint64(held)
    held += width
    store_word(out, at, word)
    whole = held >> 3
    return at + whole, word >> np.uint64(whole << 3), held & 7


@numba.njit
def _put_rice(out, at, word, held, value, k):
    quotient = value >> k
    if quotient >= ESCAPE:
        return _put(out, at, word, held, value << ESCAPE, ESCAPE + COUNT_BITS)
    rest = value & ((1 << k) - 1)
    return _put(out, at, word, held, (1 | rest << 1) << quotient, quotient + 1 + k)


@numba.njit
def _put_golomb(out, at, word, held, value, k):
    """Exponential Golomb: zeros for the length, a one, then the bits below the highest."""
    value += 1 << k
    length = 0
    while value >> (length + k + 1):
        length += 1
    rest = value & ((1 << (length + k)) - 1)
    return _put(out, at, word, held, (1 | rest << 1) << length, 2 * length + 1 + k)


@numba.njit
def _rice_parameter(values, n):
    """The parameter that makes the first n values shortest."""
    total = 0
    for i in range(n):
        total += values[i]
    k = 0
    while (n << (k + 1)) <= total and k < COUNT_BITS - 1:
        k += 1
    best = k
    least = np.int64(1) << 62
    for candidate in range(max(0, k - 1), k + 2):
        cost = n * (1 + candidate)
        for i in range(n):
            cost += min(values[i] >> candidate, ESCAPE + COUNT_BITS)
        if cost < least:
            best, least = candidate, cost
    return best


@numba.njit
def _golomb_parameter(values, n, min_value):
    best = 0
    least = np.int64(1) << 62
    for candidate in range(16):
        cost = 0
        for i in range(0, n, 1 + n // 1024):
            value = values[i] - min_value + (1 << candidate)
            length = 0
            while value >> (length + candidate + 1):
                length += 1
            cost += 2 * length + 1 + candidate
        if cost < least:
            best, least = candidate, cost
    return best


@numba.njit
def _entropy(n, k):
    """Bits that tell which k of n."""
    if k <= 0 or k >= n:
        return 0.0
    return n * math.log2(n) - k * math.log2(k) - (n - k) * math.log2(n - k)


@numba.njit
def _cost(values, changes, exceptions, least, most):
    """About how many bits a class takes."""
    if changes == 0:
        return 28.0
    positions = max(1.03 * _entropy(max(values, changes), changes), float(changes))
    cost = CLASS_COST + positions + changes
    if exceptions:
        cost += 1.03 * _entropy(changes, exceptions) + exceptions * (1 + math.log2(most - least + 1))
    return cost


@numba.njit
def _classes(values, changes, exceptions, least, most, tops):
    """Cuts the exponents into classes that take the fewest bits; writes the highest exponent of each, says how many.

    Exponents above the last class have no change. By dynamic programming: the best cut of the first exponents into some
    number of classes is a best cut of fewer into one less, and a class.
    """
    present = np.empty(256, np.int64)
    n = 0
    last = 0
    for exponent in range(256):
        if values[exponent] or changes[exponent]:
            present[n] = exponent
            n += 1
            if changes[exponent]:
                last = n
    n = last
    cost = np.empty((n, n + 1))
    for i in range(n):
        v = c = x = 0
        low, high = 1 << 17, 0
        for j in range(i, n):
            e = present[j]
            v += values[e]
            c += changes[e]
            x += exceptions[e]
            if exceptions[e]:
                low, high = min(low, least[e]), max(high, most[e])
            cost[i, j + 1] = _cost(v, c, x, low, high)
    ways = min(MAX_CLASSES, n)
    best = np.full((ways + 1, n + 1), np.inf)
    cut = np.zeros((ways + 1, n + 1), np.int64)
    best[0, 0] = 0.0
    for way in range(1, ways + 1):
        for end in range(1, n + 1):
            for begin in range(end):
                total = best[way - 1, begin] + cost[begin, end]
                if total < best[way, end]:
                    best[way, end] = total
                    cut[way, end] = begin
    way = 1
    for other in range(2, ways + 1):
        if best[other, n] < best[way, n]:
            way = other
    end = n
    for i in range(way - 1, -1, -1):
        tops[i] = present[end - 1]
        end = cut[i + 1, end]
    return way


@numba.njit
def _step(a, b):
    """From a to b, in -2^15 .. 2^15 - 1: further ones go the other way round."""
    return np.int64(np.int16(ordered(b) - ordered(a)))


@numba.njit
def _survey(a, b, count, changed, values, changes, exceptions, least, most):
    """Marks what changed and counts it by exponent; says how much there is."""
    total = 0
    least[:] = 1 << 17
    groups = (count + GROUP - 1) // GROUP
    for group in range(groups):
        start = group * GROUP
        mask = differing(a, b, start) & _within(count, start)
        changed[group] = mask
        while mask:
            at = start + lowest_bit(mask)
            mask &= mask - _ONE
            exponent = (a[at] >> 7) & 255
            size = abs(_step(a[at], b[at]))
            changes[exponent] += 1
            total += 1
            if size > 1:
                exceptions[exponent] += 1
                least[exponent] = min(least[exponent], size)
                most[exponent] = max(most[exponent], size)
    if total:
        every = SAMPLED if groups >= 64 * SAMPLED else 1
        for group in range(0, groups, every):
            for at in range(group * GROUP, min(count, group * GROUP + GROUP)):
                values[(a[at] >> 7) & 255] += every
    return total


_BITS = types.Array(types.uint16, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@kept(types.int64(_BITS, _BITS, types.int64, types.uint8[::1]))
def encode(a, b, count, out):
    """Writes what takes the first `count` values of a to those of b; returns its bytes, 0 if nothing changed, or
    TOO_LONG if it does not fit."""
    groups = (count + GROUP - 1) // GROUP
    changed = np.empty(groups, np.uint64)
    tallies = np.zeros((5, 256), np.int64)
    total = _survey(a, b, count, changed, tallies[0], tallies[1], tallies[2], tallies[3], tallies[4])
    if total == 0:
        return 0
    room = out.size - SLACK
    if room < 0:
        return TOO_LONG
    tops = np.empty(MAX_CLASSES, np.int64)
    classes = _classes(tallies[0], tallies[1], tallies[2], tallies[3], tallies[4], tops)
    gaps = np.empty(total, np.int32)
    steps = np.empty(total, np.int32)
    odd_gaps = np.empty(total, np.int32)
    odd_sizes = np.empty(total, np.int32)
    at, word, held = _put(out, 0, _ZERO, 0, classes, 4)
    bottom = 0
    for number in range(classes):
        low, span = np.uint16(bottom << 7), np.uint16((tops[number] - bottom) << 7 | 127)
        n = 0
        odd = 0
        least = 1 << 17
        before = 0  # members in earlier groups
        last = -1  # the last changed one, among members
        last_odd = -1
        for group in range(groups):
            mask = members(a, group * GROUP, low, span)
            hits = mask & changed[group]
            while hits:
                bit = lowest_bit(hits)
                hits &= hits - _ONE
                rank = before + bits_set(mask & ((_ONE << np.uint64(bit)) - _ONE))
                gaps[n] = rank - last - 1
                last = rank
                step = _step(a[group * GROUP + bit], b[group * GROUP + bit])
                steps[n] = step
                if abs(step) > 1:
                    odd_gaps[odd] = n - last_odd - 1
                    odd_sizes[odd] = abs(step)
                    last_odd = n
                    least = min(least, abs(step))
                    odd += 1
                n += 1
            before += bits_set(mask)
        if at > room:
            return TOO_LONG
        at, word, held = _put(out, at, word, held, tops[number] | n << 8, 8 + COUNT_BITS)
        bottom = tops[number] + 1
        if n == 0:
            continue
        k = _rice_parameter(gaps, n)
        at, word, held = _put(out, at, word, held, k | odd << 5, 5 + COUNT_BITS)
        odd_k = golomb = 0
        following = -1
        taken = 0
        if odd:
            odd_k = _rice_parameter(odd_gaps, odd)
            golomb = _golomb_parameter(odd_sizes, odd, least)
            at, word, held = _put(out, at, word, held, odd_k | golomb << 5 | least << 10, 26)
            at, word, held = _put_rice(out, at, word, held, odd_gaps[0], odd_k)
            following = odd_gaps[0]
        for i in range(n):
            if at > room:
                return TOO_LONG
            at, word, held = _put_rice(out, at, word, held, gaps[i], k)
            at, word, held = _put(out, at, word, held, 1 if steps[i] > 0 else 0, 1)
            if i == following:
                at, word, held = _put_golomb(out, at, word, held, odd_sizes[taken] - least, golomb)
                taken += 1
                if taken < odd:
                    at, word, held = _put_rice(out, at, word, held, odd_gaps[taken], odd_k)
                    following += 1 + odd_gaps[taken]
    if at > room:
        return TOO_LONG
    return at + (1 if held else 0)


@numba.njit
def _word(data, at):
    """At least 57 bits from bit `at` on; there must be eight more bytes."""
    return load_word(data, at >> 3) >> np.uint64(at & 7)


@numba.njit
def _low(word, width):
    return np.int64(word & ((_ONE << np.uint64(width)) - _ONE))


@numba.njit
def _rice(word, k):
    """A value of at most COUNT_BITS + ESCAPE bits, and how many bits it took."""
    quotient = lowest_bit(word)
    if quotient >= ESCAPE:
        return _low(word >> np.uint64(ESCAPE), COUNT_BITS), ESCAPE + COUNT_BITS
    return quotient << k | _low(word >> np.uint64(quotient + 1), k), quotient + 1 + k


@kept(types.int64(_BITS, types.int64, _BYTES, types.int64, types.uint16[::1]))
def apply(a, count, data, size, out):
    """Changes `out`, which holds the first `count` values of a, as the first `size` bytes say; returns OK or what is
    wrong with them. There must be SLACK bytes after them. What `out` holds after an error means nothing."""
    groups = (count + GROUP - 1) // GROUP
    end = size * 8
    word = _word(data, 0)
    classes = _low(word, 4)
    at = 4
    bottom = 0
    if classes < 1 or classes > MAX_CLASSES:
        return MALFORMED
    for _ in range(classes):
        if at > end:
            return TRUNCATED
        word = _word(data, at)
        top, n = _low(word, 8), _low(word >> np.uint64(8), COUNT_BITS)
        at += 8 + COUNT_BITS
        if top < bottom or n > count:
            return MALFORMED
        low, span = np.uint16(bottom << 7), np.uint16((top - bottom) << 7 | 127)
        bottom = top + 1
        if n == 0:
            continue
        if at > end:
            return TRUNCATED
        word = _word(data, at)
        k, odd = _low(word, 5), _low(word >> np.uint64(5), COUNT_BITS)
        at += 5 + COUNT_BITS
        if k > COUNT_BITS or odd > n:
            return MALFORMED
        odd_k = golomb = least = 0
        following = np.int64(-1)
        if odd:
            if at > end:
                return TRUNCATED
            word = _word(data, at)
            odd_k, golomb, least = _low(word, 5), _low(word >> np.uint64(5), 5), _low(word >> np.uint64(10), 16)
            at += 26
            if odd_k > COUNT_BITS or golomb > 16:
                return MALFORMED
            if at > end:
                return TRUNCATED
            following, width = _rice(_word(data, at), odd_k)
            at += width
        group = 0
        mask = members(a, 0, low, span) & _within(count, 0)
        held = bits_set(mask)
        rank = np.int64(-1)  # of the change, among the members from this group on
        for i in range(n):
            if at > end:
                return TRUNCATED
            word = _word(data, at)
            gap, width = _rice(word, k)
            up = word >> np.uint64(width) & _ONE
            at += width + 1
            rank += gap + 1
            while rank >= held:
                rank -= held
                group += 1
                if group >= groups:
                    return MALFORMED
                mask = members(a, group * GROUP, low, span) & _within(count, group * GROUP)
                held = bits_set(mask)
            step = np.int64(1)
            if i == following:
                if at > end:
                    return TRUNCATED
                word = _word(data, at)
                length = lowest_bit(word)
                if length > 17:
                    return MALFORMED
                width = length + golomb
                step = least + (1 << width | _low(word >> np.uint64(length + 1), width)) - (1 << golomb)
                at += length + 1 + width
                odd -= 1
                if odd:
                    if at > end:
                        return TRUNCATED
                    gap, width = _rice(_word(data, at), odd_k)
                    at += width
                    following += 1 + gap
            where = group * GROUP + _select(mask, rank)
            place = np.int64(ordered(a[where])) + (step if up else -step)
            out[where] = value_at(np.uint16(place & 0xFFFF))
        if odd:
            return MALFORMED
    if at > end or end - at >= 8:
        return TRUNCATED
    return OK
