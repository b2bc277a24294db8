"""A linear layer of any rank is compared with the stored matrices that it is made of, and each stale one is named.

The layers stand in for vLLM's: they have their fields, and a matrix that was put together as vLLM's loaders do.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.generate.vllm.linear_probe import (
    Layout,
    column_parallel_layout,
    compare,
    plain_layout,
    qkv_layout,
    row_parallel_layout,
    spread,
)

HIDDEN, HEAD, HEADS = 48, 4, 12
FEED_FORWARD = 60
SIZES = {"gate": (FEED_FORWARD, HIDDEN), "up": (FEED_FORWARD, HIDDEN), "down": (HIDDEN, FEED_FORWARD)}
DTYPES = [torch.float32, torch.bfloat16]


def version(seed: int, kv_heads: int = HEADS) -> dict[str, Tensor]:
    """The stored matrices and biases of one transformer layer."""
    kv = kv_heads * HEAD
    sizes = SIZES | {"q": (HEADS * HEAD, HIDDEN), "k": (kv, HIDDEN), "v": (kv, HIDDEN), "o": (HIDDEN, HEADS * HEAD)}
    generator = torch.Generator().manual_seed(seed)
    found = {f"{name}.weight": torch.randn(size, generator=generator) for name, size in sizes.items()}
    return found | {f"{name}.bias": torch.randn(size[0], generator=generator) for name, size in sizes.items()}


def layer_of(matrix: Tensor, bias: Tensor | None, dtype: torch.dtype, **fields: Any) -> Any:
    """A layer that computes with a copy of its own, as packed ones do."""
    packed = matrix.to(dtype).clone()
    apply = lambda _layer, x, bias: torch.nn.functional.linear(x, packed, bias)  # noqa: E731
    nothing = lambda: iter(())  # noqa: E731
    return SimpleNamespace(
        bias=None if bias is None else bias.to(dtype),
        params_dtype=dtype,
        quant_method=SimpleNamespace(apply=apply),
        parameters=nothing,
        buffers=nothing,
        **fields,
    )


def merged(weights: dict[str, Tensor], names: str, rank: int, ranks: int, dtype: torch.dtype) -> tuple[Any, Layout]:
    """gate and up, or q, k and v, as a rank has them: of fewer k and v heads than ranks, several have the same."""
    kv_heads = len(weights["k.weight"]) // HEAD
    replicas = max(1, ranks // kv_heads)
    matrices, biases = [], []
    for name in names.split():
        same = replicas if name in "kv" else 1
        matrices.append(weights[f"{name}.weight"].chunk(ranks // same)[rank // same])
        biases.append(weights[f"{name}.bias"].chunk(ranks // same)[rank // same])
    layer = layer_of(
        torch.cat(matrices),
        torch.cat(biases),
        dtype,
        input_size=HIDDEN,
        output_partition_sizes=[len(matrix) for matrix in matrices],
        num_kv_head_replicas=replicas,
        tp_rank=rank,
        tp_size=ranks,
    )
    layout = (qkv_layout if "q" in names.split() else column_parallel_layout)(names.split(), layer)
    assert layout is not None
    return layer, layout


def row_parallel(
    weights: dict[str, Tensor], name: str, rank: int, ranks: int, dtype: torch.dtype
) -> tuple[Any, Layout]:
    matrix = weights[f"{name}.weight"].chunk(ranks, dim=1)[rank]
    split = {"input_size_per_partition": matrix.shape[1], "tp_rank": rank, "tp_size": ranks}
    layer = layer_of(matrix, weights[f"{name}.bias"], dtype, output_size=len(matrix), **split)
    return layer, row_parallel_layout(name, layer)


RANKS = [(0, 1), (0, 2), (1, 2), (1, 4), (2, 4), (3, 4)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_heads", [12, 4, 2, 1])
@pytest.mark.parametrize(("rank", "ranks"), RANKS)
@pytest.mark.parametrize("names", ["q k v", "gate up", "o", "down"])
def test_a_right_layer_of_any_rank_agrees_in_every_matrix_and_bias(
    names: str, rank: int, ranks: int, kv_heads: int, dtype: torch.dtype
) -> None:
    weights = version(1, kv_heads)
    found = dict(compare(*(merged if " " in names else row_parallel)(weights, names, rank, ranks, dtype), weights))
    assert found == {f"{name}.{kind}": True for name in names.split() for kind in ("weight", "bias")}


@pytest.mark.parametrize("stale", [f"{name}.{kind}" for name in ["q", "k", "v"] for kind in ("weight", "bias")])
@pytest.mark.parametrize("kv_heads", [12, 2])
@pytest.mark.parametrize(("rank", "ranks"), RANKS)
def test_a_stale_part_of_qkv_is_named_and_no_other(stale: str, kv_heads: int, rank: int, ranks: int) -> None:
    weights = version(1, kv_heads)
    layer = merged(weights | {stale: version(2, kv_heads)[stale]}, "q k v", rank, ranks, torch.float32)
    assert [name for name, agrees in compare(*layer, weights) if not agrees] == [stale]


@pytest.mark.parametrize("stale", ["gate.weight", "gate.bias", "up.weight", "up.bias"])
@pytest.mark.parametrize(("rank", "ranks"), RANKS)
def test_a_stale_part_of_gate_and_up_is_named_and_no_other(stale: str, rank: int, ranks: int) -> None:
    weights = version(1)
    layer = merged(weights | {stale: version(2)[stale]}, "gate up", rank, ranks, torch.float32)
    assert [name for name, agrees in compare(*layer, weights) if not agrees] == [stale]


@pytest.mark.parametrize("stale", ["o.weight", "o.bias", "down.weight", "down.bias"])
@pytest.mark.parametrize(("rank", "ranks"), RANKS)
def test_a_stale_layer_whose_inputs_are_split_is_named(stale: str, rank: int, ranks: int) -> None:
    weights = version(1)
    layer = row_parallel(weights | {stale: version(2)[stale]}, stale.split(".")[0], rank, ranks, torch.float32)
    assert [name for name, agrees in compare(*layer, weights) if not agrees] == [stale]


@pytest.mark.parametrize("other", [0, 2, 3])
def test_the_columns_of_another_rank_are_not_taken_for_this_ones(other: int) -> None:
    weights = version(1)
    layer, _ = row_parallel(weights, "down", other, 4, torch.float32)
    _, layout = row_parallel(weights, "down", 1, 4, torch.float32)
    assert dict(compare(layer, layout, weights)) == {"down.weight": False, "down.bias": True}


def test_a_bias_that_the_layer_has_not_got_is_named() -> None:
    weights = version(1)
    layer = layer_of(weights["o.weight"], None, torch.float32, output_size=HIDDEN, input_size=HEADS * HEAD)
    assert dict(compare(layer, plain_layout("o", layer), weights)) == {"o.weight": True, "o.bias": False}


def test_parts_that_are_stored_otherwise_are_left_out_and_the_others_compared() -> None:
    weights = version(1)
    layer, layout = merged(weights, "q k v", 0, 2, torch.float32)
    stored = {name: tensor for name, tensor in weights.items() if not name.startswith("k.")}
    stored |= {"v.weight": weights["v.weight"].T[:, :40]}
    assert dict(compare(layer, layout, stored)) == {"q.weight": True, "q.bias": True}


def test_a_layer_that_is_stored_under_no_known_name_is_not_asked() -> None:
    layer = SimpleNamespace(output_partition_sizes=[8, 8], input_size=8, tp_rank=0, tp_size=1)
    assert column_parallel_layout(["one"], layer) is None
    layout = column_parallel_layout(["one", "two"], layer)
    assert layout is not None
    assert list(compare(layer, layout, {"one.weight": torch.zeros(8, 1, 8), "one.bias": torch.zeros(8)})) == []


@pytest.mark.parametrize(("count", "places"), [(1, 1), (7, 7), (16, 16), (4096, 16)])
def test_few_columns_are_asked_for_with_the_first_and_the_last(count: int, places: int) -> None:
    found = spread(count)
    assert (found[0], found[-1], len(found)) == (0, count - 1, places)
