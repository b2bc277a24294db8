"""Steps between tensors: any two of one shape, bit for bit; damaged ones are refused or give what was meant."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import DeltaError
from shoal.shardcast.delta import kernels
from shoal.shardcast.delta.blocks import BLOCK, PADDING, Bits, apply_tensor, encode_tensor

# Zeros, least and largest denormals, least normal, 1, largest finite, infinities, quiet and signalling NaNs.
SPECIAL = [
    sign | bits for sign in (0, 0x8000) for bits in (0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x7FFF)
]
ANY = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 0xFFFF))
WEIGHTS = (np.random.default_rng(0).normal(0, 0.05, 5 * BLOCK // 4).astype(np.float32).view(np.uint32) >> 16).astype(
    np.uint16
)


def tensors(least: int, most: int) -> st.SearchStrategy[Bits]:
    return hnp.arrays(np.uint16, st.integers(least, most), elements=ANY)


def moved(a: Bits, share: float, most: int = 1, seed: int = 0) -> Bits:
    """About that share of the values is changed by up to so many steps, as an optimizer does."""
    random = np.random.default_rng(seed)
    places = random.random(a.size) < share
    steps = random.integers(1, most + 1, a.size) * random.choice([-1, 1], a.size) * places
    b: Bits = (a.astype(np.int64) + steps).astype(np.uint16)
    return b


def same(a: Bits, b: Bits) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(st.data())
def test_any_two_tensors_of_one_shape_come_back_bit_for_bit(data: st.DataObject) -> None:
    a = data.draw(tensors(0, 300))
    b = data.draw(hnp.arrays(np.uint16, a.shape, elements=ANY))
    assert same(apply_tensor(encode_tensor(a, b), a), b)


@given(tensors(1, 300), st.lists(st.tuples(st.integers(0, 299), st.integers(-3, 3)), max_size=40))
def test_a_few_small_steps_come_back_bit_for_bit(a: Bits, changes: list[tuple[int, int]]) -> None:
    b = a.copy()
    for place, step in changes:
        b[place % b.size] = (int(b[place % b.size]) + step) % 65536
    assert same(apply_tensor(encode_tensor(a, b), a), b)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, BLOCK // 2 - 1, BLOCK // 2, BLOCK // 2 + 1, WEIGHTS.size])
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.05, 1.0])
def test_every_length_around_a_block_comes_back(size: int, share: float) -> None:
    a = WEIGHTS[:size]
    b = moved(a, share)
    delta = encode_tensor(a, b)
    assert same(apply_tensor(delta, a), b)
    assert share or len(delta) <= 5


def test_every_value_to_every_kind_of_value_comes_back() -> None:
    everything = np.arange(65536, dtype=np.uint16)
    for target in (*SPECIAL, None):
        b = everything[::-1].copy() if target is None else np.full(65536, target, np.uint16)
        assert same(apply_tensor(encode_tensor(everything, b), everything), b)


def test_the_order_is_a_bijection_that_follows_the_reals() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    places = np.array([kernels.ordered(b) for b in bits])
    assert sorted(places) == list(range(65536))
    assert [int(kernels.value_at(place)) for place in places] == list(range(65536))
    finite = bits[(bits & 0x7FFF) <= 0x7F80]
    values = (finite.astype(np.uint32) << 16).view(np.float32)
    assert (np.diff(values[np.argsort(places[finite])]) >= 0).all()
    assert places[0x0000] == places[0x8000] + 1


def test_a_shape_is_kept_and_views_are_taken() -> None:
    a = WEIGHTS[:4096].reshape(64, 64)
    b = moved(WEIGHTS[:4096], 0.1).reshape(64, 64)
    assert same(apply_tensor(encode_tensor(a.T, b.T), a.T), b.T.copy())


def test_what_follows_from_the_exponent_is_not_paid_for() -> None:
    """Small weights change, large ones do not: knowing which are small must save bytes."""
    sizes = WEIGHTS & 0x7FFF
    small = sizes < np.quantile(sizes, 0.1)
    b = np.where(small, moved(WEIGHTS, 0.5), WEIGHTS)
    blind = WEIGHTS.size * _entropy((b != WEIGHTS).mean()) / 8
    assert len(encode_tensor(WEIGHTS, b)) < 0.6 * (blind + (b != WEIGHTS).sum() / 8)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.3])
def test_steps_take_hardly_more_than_their_entropy(share: float) -> None:
    b = moved(WEIGHTS, share)
    changed = (b != WEIGHTS).mean()
    assert len(encode_tensor(WEIGHTS, b)) < 1.1 * WEIGHTS.size * (_entropy(changed) + changed) / 8


def test_a_tensor_that_has_nothing_to_do_with_its_base_costs_no_more_than_itself() -> None:
    b = np.random.default_rng(1).integers(0, 65536, WEIGHTS.size).astype(np.uint16)
    delta = encode_tensor(WEIGHTS, b)
    assert len(delta) <= b.nbytes + 5 * -(-b.nbytes // BLOCK)
    assert same(apply_tensor(delta, WEIGHTS), b)


def _entropy(p: float) -> float:
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros(2, np.uint16), np.zeros(3, np.uint16)),
        (np.zeros((2, 3), np.uint16), np.zeros((3, 2), np.uint16)),
        (np.zeros(2, np.float32), np.zeros(2, np.float32)),
    ],
)
def test_tensors_that_do_not_go_together_are_refused(a: Bits, b: Bits) -> None:
    with pytest.raises(DeltaError, match="of one shape as uint16"):
        encode_tensor(a, b)


def outcome(delta: bytes, a: Bits) -> str:
    """Refused, or a tensor of the base's shape: the hash of the file tells whether it is the right one."""
    try:
        b = apply_tensor(delta, a)
    except DeltaError:
        return "refused"
    assert b.shape == a.shape
    return "applied"


def test_ten_thousand_damaged_deltas_are_refused_or_stay_within_the_tensor() -> None:
    random = np.random.default_rng(2)
    a = WEIGHTS[:5000]
    whole = [
        np.frombuffer(encode_tensor(a, moved(a, share, most)), np.uint8) for share, most in ((0.02, 1), (0.4, 900))
    ]
    began = time.monotonic()
    seen = {"refused": 0, "applied": 0}
    for number in range(12_000):
        bad = whole[number % 2].copy()
        kind = number // 2 % 4
        if kind == 0:
            bad[random.integers(bad.size)] ^= 1 << random.integers(8)
        elif kind == 1:
            bad[random.integers(bad.size, size=4)] = random.integers(0, 256, 4)
        elif kind == 2:
            bad = bad[: random.integers(bad.size)]
        else:
            start, length = random.integers(5, bad.size), random.integers(1, 64)
            bad[start : start + length] = random.choice([0, 255])
        seen[outcome(bad.tobytes(), a)] += 1
    assert seen["refused"] > 3000
    assert time.monotonic() - began < 60


@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 400))
def test_any_bytes_as_a_block_are_refused_or_stay_within_the_tensor(data: bytes, kind: int, size: int) -> None:
    record = bytes([kind]) + len(data).to_bytes(4, "little") + data
    assert outcome(record, WEIGHTS[:size]) in ("refused", "applied")


@given(st.binary(min_size=1, max_size=120), st.integers(1, 300))
def test_steps_of_any_bytes_write_nothing_outside_the_block(data: bytes, count: int) -> None:
    a = np.zeros(BLOCK // 2 + PADDING // 2, np.uint16)
    a[:count] = WEIGHTS[:count]
    out = np.full(1024, 0xABCD, np.uint16)
    coded = np.frombuffer(data + b"\xff" * PADDING, np.uint8)
    kernels.apply(a, count, coded, len(data), out[256 : 256 + count])
    assert (out[:256] == 0xABCD).all()
    assert (out[256 + count :] == 0xABCD).all()


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        (b"", "too early"),
        (b"\x07\x00\x00\x00\x00", "kind 7"),
        (b"\x00\x02\x00\x00\x00", "more blocks are said"),
        (b"\x00\x00\x00\x00\x00", "has none there"),
        (b"\x01\xff\xff\xff\xff", "are said to take"),
        (b"\x03\x01\x00\x00\x00\x00", "is said to take 1"),
        (b"\x02\x04\x00\x00\x00abcd", "cannot be unpacked"),
        # A frame that claims 2^60 bytes.
        (b"\x02\x0d\x00\x00\x00\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little"), "does not hold"),
        (b"\x00\x01\x00\x00\x00more", "4 bytes follow"),
    ],
)
def test_what_is_wrong_is_said(delta: bytes, why: str) -> None:
    with pytest.raises(DeltaError, match=why):
        apply_tensor(delta, WEIGHTS[:100])


def test_importing_the_library_imports_neither_numba_nor_torch() -> None:
    code = "import sys, shoal.shardcast.delta.delta; print([m for m in ('numba', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
