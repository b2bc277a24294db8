"""Fingerprint: whether the weights that vLLM computes with are those of a version's files, bit for bit.

A reload that leaves something stale is silent, and its answers would get an honest node banned. So the layers are asked
what they compute (`linear_probe.py`): some columns of every linear layer that the files name, the output head, rows of
the embedding, and all norms. Output head, embedding and q must be among what was compared.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.generate.vllm.linear_probe import (
    Layout,
    column_parallel_layout,
    compare,
    plain_layout,
    qkv_layout,
    row_parallel_layout,
    same,
    spread,
    unit_rows,
)

# The stored matrices of vLLM's merged layers, by the last word of the layer's name, where its model does not say.
MERGED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def first_difference(model: Any, weights: Mapping[str, Tensor], *, head: bool = True) -> str | None:
    """What of a model is not as in a version's files, or cannot be compared with them; None if all agrees. `head` is
    False for a model that computes states alone and has no head."""
    with torch.inference_mode():
        return next((what for what, agrees in _comparisons(model, weights, has_head=head) if not agrees), None)


def _comparisons(model: Any, weights: Mapping[str, Tensor], *, has_head: bool) -> Iterator[tuple[str, bool]]:
    from vllm.model_executor.layers.linear import LinearBase, QKVParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    compared = set()
    for name, module in model.named_modules():
        if isinstance(module, VocabParallelEmbedding):
            head = isinstance(module, ParallelLMHead)
            if head and not has_head:
                continue
            own = f"{name}.weight"
            stored = own if own in weights else _only(weights, "embed_tokens.weight")
            if stored is None:
                yield f"{own}, which the version does not have", False
                return
            compared.add("head" if head else "embedding")
            yield own, _head_is(model, module, weights[stored]) if head else _embedding_is(module, weights[stored])
        elif isinstance(module, LinearBase):
            layout = _layout(model, name, module)
            found = [] if layout is None else list(compare(module, layout, weights))
            if isinstance(module, QKVParallelLinear):
                compared.add("q")
                q = f"{_merged_names(model, name)[0]}.weight"
                if q not in dict(found):
                    yield f"{q}, which the version does not have in the shape of vLLM's layer", False
                    return
            yield from found
        elif (own := f"{name}.weight") in weights and weights[own].ndim == 1 and hasattr(module, "weight"):
            yield own, same(module.weight, weights[own])
    if has_head and "head" not in compared and "embedding" in compared:  # a tied head is the embedding's own module
        embedding = next(m for m in model.modules() if isinstance(m, VocabParallelEmbedding))
        stored = _only(weights, "embed_tokens.weight")
        assert stored is not None
        compared.add("head")
        yield "the tied head", _head_is(model, embedding, weights[stored])
    if missing := {"embedding", "q", *(["head"] * has_head)} - compared:
        yield f"{min(missing)}: vLLM has no such layer in {type(model).__name__}", False


def _layout(model: Any, name: str, layer: Any) -> Layout | None:
    """Where the matrices of a linear layer stand in the files; None if it is not known."""
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )

    match layer:
        case QKVParallelLinear():
            return qkv_layout(_merged_names(model, name), layer)
        case MergedColumnParallelLinear():
            return column_parallel_layout(_merged_names(model, name), layer)
        case ColumnParallelLinear():
            return column_parallel_layout([name], layer)
        case RowParallelLinear():
            return row_parallel_layout(name, layer)
        case ReplicatedLinear():
            return plain_layout(name, layer)
    return None


def _merged_names(model: Any, name: str) -> Sequence[str]:
    """The names under which the files have the matrices of a merged layer."""
    before, _, last = name.rpartition(".")
    parts = {**MERGED, **getattr(model, "packed_modules_mapping", {})}.get(last, (last,))
    return [f"{before}.{part}" for part in parts]


def _only(weights: Mapping[str, Tensor], ending: str) -> str | None:
    found = [name for name in weights if name.endswith(ending)]
    return found[0] if len(found) == 1 else None


def _rank_rows(module: Any) -> tuple[int, int]:
    """Which tokens of the vocabulary this rank has."""
    shard = module.shard_indices
    return int(shard.org_vocab_start_index), int(shard.org_vocab_end_index)


def _embedding_is(module: Any, file_VD: Tensor) -> bool:
    first, end = _rank_rows(module)
    places = spread(end - first)
    return same(module.weight[places], file_VD[[first + place for place in places]])


def _head_is(model: Any, module: Any, file_VD: Tensor) -> bool:
    """Through the logits processor of the model, which knows the number format of the head."""
    first, end = _rank_rows(module)
    places = spread(file_VD.shape[1])
    units_PD = unit_rows(places, file_VD.shape[1], module.weight.dtype, module.weight.device)
    own_PV = model.logits_processor._apply_head(module, units_PD, None)[:, : end - first]
    return same(own_PV, file_VD[first:end, places].T)
