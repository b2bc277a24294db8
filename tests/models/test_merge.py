"""A merged model has the same bits on every machine: however many threads merge it, and in whatever language."""

import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.errors import ModelError
from shoal.models import merge as merging
from shoal.models.adapter_files import Adapter, Pair
from shoal.models.merge import Base, MergedWeights, merge

LAYER = "model.layers.0.self_attn.q_proj"


def drawn(rows: int, columns: int, rank: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Pair]:
    """A matrix with values of all sizes, and an adapter that changes most of them."""
    generator = torch.Generator().manual_seed(seed)

    def wild(*shape: int) -> Tensor:
        exponents = torch.randint(-12, 4, shape, generator=generator).float()
        return torch.randn(*shape, generator=generator) * exponents.exp2()

    return wild(rows, columns).to(dtype), Pair(wild(rank, columns), wild(rows, rank))


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def bfloat16(value: float) -> float:
    """The nearest bfloat16 of a float32, ties to even, by exact arithmetic on the two neighbours."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, above = (struct.unpack("<f", struct.pack("<I", b))[0] for b in (bits & ~0xFFFF, (bits & ~0xFFFF) + 0x10000))
    down, up = Fraction(value) - Fraction(below), Fraction(above) - Fraction(value)
    closer_below = abs(down) < abs(up) or (abs(down) == abs(up) and not bits >> 16 & 1)
    return float(below if closer_below else above)


def by_hand(weight: Tensor, pair: Pair, scale: float) -> Tensor:
    """The definition in plain Python numbers, which are float64."""
    a, b = pair.a_ri.tolist(), pair.b_or.tolist()
    out = []
    for row, weights in enumerate(weight.float().tolist()):
        merged = []
        for column, w in enumerate(weights):
            total = 0.0
            for r in range(len(a)):
                total += b[row][r] * a[r][column]
            value = float32(w + float32(scale * total))
            merged.append(bfloat16(value) if weight.dtype == torch.bfloat16 else value)
        out.append(merged)
    return torch.tensor(out, dtype=weight.dtype)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), st.floats(1e-3, 100), st.integers(0, 2**32))
def test_a_merge_is_what_plain_python_numbers_give(
    dtype: torch.dtype, rows: int, columns: int, rank: int, scale: float, seed: int
) -> None:
    weight, pair = drawn(rows, columns, rank, dtype, seed)
    assert same_bits(merge(weight, pair, scale), by_hand(weight, pair, scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_and_cuts_do_not_change_a_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, pair = drawn(501, 1500, 13, dtype)
    monkeypatch.setattr(merging, "MIN_VALUES", 1)
    whole = merge(weight, pair, 1.7, threads=1)
    for threads in (2, 3, 64):
        assert same_bits(merge(weight, pair, 1.7, threads), whole)
    for first, last in ((0, 1), (17, 400)):  # of some rows and columns alone
        part = Pair(pair.a_ri[:, 700:], pair.b_or[first:last])
        assert same_bits(merge(weight[first:last, 700:], part, 1.7), whole[first:last, 700:].contiguous())


def test_a_blas_product_has_other_bits_so_that_the_order_of_the_sum_matters() -> None:
    weight, pair = drawn(64, 512, 64, torch.float32)
    assert not same_bits(merge(weight, pair, 1.0), weight + pair.b_or @ pair.a_ri)
    assert torch.allclose(merge(weight, pair, 1.0), weight + pair.b_or @ pair.a_ri, rtol=1e-3, atol=1e-3)


def weights_of(dtype: torch.dtype = torch.float32) -> tuple[Base, Adapter]:
    weight, pair = drawn(12, 10, 3, dtype)
    return Base("0" * 64, {f"{LAYER}.weight": weight, "norm.weight": torch.ones(10, dtype=dtype)}), Adapter(
        3, 6.0, {LAYER: pair}
    )


def test_merged_weights_name_every_tensor_and_change_only_those_with_an_adapter() -> None:
    base, adapter = weights_of()
    merged = MergedWeights(base, adapter, "version 1")
    assert sorted(merged) == sorted(base.weights)
    assert same_bits(merged["norm.weight"], base.weights["norm.weight"])
    assert same_bits(merged[f"{LAYER}.weight"], by_hand(base.weights[f"{LAYER}.weight"], adapter.pairs[LAYER], 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bit_of_any_tensor_changes_the_hash(dtype: torch.dtype) -> None:
    base, adapter = weights_of(dtype)
    roots = {MergedWeights(base, adapter, "version 1").root()}
    for name in base.weights:
        changed = {key: tensor.clone() for key, tensor in base.weights.items()}
        changed[name].view(torch.uint8).view(-1)[1] ^= 1
        roots.add(MergedWeights(Base(base.root, changed), adapter, "version 1").root())
    renamed = {key.replace("norm", "form"): tensor for key, tensor in base.weights.items()}
    roots.add(MergedWeights(Base(base.root, renamed), adapter, "version 1").root())
    reshaped = {**base.weights, "norm.weight": base.weights["norm.weight"].view(2, 5)}
    roots.add(MergedWeights(Base(base.root, reshaped), adapter, "version 1").root())
    assert len(roots) == 5


def test_a_merge_hashes_the_same_a_second_time_and_after_another_adapter() -> None:
    base, adapter = weights_of()
    first = MergedWeights(base, adapter, "version 1").root()
    other = Adapter(3, 5.0, adapter.pairs)
    assert MergedWeights(base, other, "version 2").root() != first
    assert MergedWeights(base, adapter, "version 1").root() == first


def test_an_adapter_of_another_shape_or_layer_is_refused_by_name() -> None:
    base, adapter = weights_of()
    pair = adapter.pairs[LAYER]
    for pairs, why in (
        ({"model.layers.7.mlp": pair}, r"has an adapter of model\.layers\.7\.mlp, which is not a linear layer"),
        ({"norm": pair}, r"version 1: has an adapter of norm, which is not a linear layer"),
        ({LAYER: Pair(pair.a_ri[:, 1:], pair.b_or)}, r"q_proj is 12 x 9, the layer \(12, 10\)"),
    ):
        with pytest.raises(ModelError, match=why):
            MergedWeights(base, Adapter(3, 6.0, pairs), "version 1")
