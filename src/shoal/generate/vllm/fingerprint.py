"""Fingerprint: whether the weights that vLLM computes with are those of a version's files, bit for bit.

A reload that leaves something stale is silent, and its answers would get an honest node banned. So the layers are asked
what they compute: a linear layer whose input is 1 at one place and 0 elsewhere gives a column of its matrix exactly,
out of whatever packed copy it really uses. Compared are the output head, q of every layer, rows of the embedding, and
all norms.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

PROBES = 16


def first_difference(model: Any, weights: Mapping[str, Tensor]) -> str | None:
    """What of a model is not as in a version's files, or cannot be compared with them; None if all agrees."""
    with torch.inference_mode():
        return next((what for what, same in _comparisons(model, weights) if not same), None)


def _comparisons(model: Any, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, bool]]:
    from vllm.model_executor.layers.linear import QKVParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    compared = set()
    for name, module in model.named_modules():
        if isinstance(module, VocabParallelEmbedding):
            head = isinstance(module, ParallelLMHead)
            own = f"{name}.weight"
            stored = own if own in weights else _only(weights, "embed_tokens.weight")
            if stored is None:
                yield f"{own}, which the version does not have", False
                return
            compared.add("head" if head else "embedding")
            yield own, _head_is(model, module, weights[stored]) if head else _embedding_is(module, weights[stored])
        elif isinstance(module, QKVParallelLinear):
            stored = f"{name.removesuffix('qkv_proj')}q_proj.weight"
            if stored not in weights:
                yield f"{stored}, which the version does not have", False
                return
            compared.add("q")
            yield stored, _q_is(module, weights[stored])
        elif (own := f"{name}.weight") in weights and weights[own].ndim == 1 and hasattr(module, "weight"):
            yield own, bool((module.weight == _like(weights[own], module.weight)).all())
    if "head" not in compared and "embedding" in compared:  # a tied head that is the embedding's own module
        embedding = next(m for m in model.modules() if isinstance(m, VocabParallelEmbedding))
        stored = _only(weights, "embed_tokens.weight")
        assert stored is not None
        yield "the tied head", _head_is(model, embedding, weights[stored])
    elif missing := {"head", "embedding", "q"} - compared:
        yield f"{min(missing)}: vLLM has no such layer in {type(model).__name__}", False


def _only(weights: Mapping[str, Tensor], ending: str) -> str | None:
    found = [name for name in weights if name.endswith(ending)]
    return found[0] if len(found) == 1 else None


def _like(file: Tensor, computed: Tensor) -> Tensor:
    return file.to(device=computed.device, dtype=computed.dtype)


def spread(count: int) -> list[int]:
    """Some places of so many, first and last among them."""
    probes = min(PROBES, count)
    return sorted({round(n * (count - 1) / max(1, probes - 1)) for n in range(probes)})


def _unit_rows(places: list[int], size: int, like: Tensor) -> Tensor:
    rows_PD = torch.zeros(len(places), size, device=like.device, dtype=like.dtype)
    rows_PD[range(len(places)), places] = 1
    return rows_PD


def _rank_rows(module: Any) -> tuple[int, int]:
    """Which tokens of the vocabulary this rank has."""
    shard = module.shard_indices
    return int(shard.org_vocab_start_index), int(shard.org_vocab_end_index)


def _embedding_is(module: Any, file_VD: Tensor) -> bool:
    first, end = _rank_rows(module)
    places = spread(end - first)
    own_PD = module.weight[places]
    return bool((own_PD == _like(file_VD[[first + place for place in places]], own_PD)).all())


def _head_is(model: Any, module: Any, file_VD: Tensor) -> bool:
    """Through the logits processor of the model, which knows the number format of the head."""
    first, end = _rank_rows(module)
    places = spread(file_VD.shape[1])
    units_PD = _unit_rows(places, file_VD.shape[1], module.weight)
    own_PV = model.logits_processor._apply_head(module, units_PD, None)[:, : end - first]
    return bool((own_PV == _like(file_VD[first:end, places].T, own_PV)).all())


def _q_is(module: Any, file_QD: Tensor) -> bool:
    rows = int(module.num_heads * module.head_size)
    first = rows * int(module.tp_rank)
    places = spread(file_QD.shape[1])
    units_PD = _unit_rows(places, file_QD.shape[1], file_QD.to(module.params_dtype))
    own_PQ = module.quant_method.apply(module, units_PD.to(_device_of(module)), None)[:, :rows]
    return bool((own_PQ == _like(file_QD[first : first + rows, places].T, own_PQ)).all())


def _device_of(module: Any) -> torch.device:
    parameters = [*module.parameters(), *module.buffers()]
    return parameters[0].device if parameters else torch.device("cpu")
