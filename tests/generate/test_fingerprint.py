"""The fingerprint refuses a model of which it cannot compare what it must; vLLM's layers are stood in for here.

`tests/vllm/test_engine.py` compares those of a real one, matrix by matrix.
"""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.generate.vllm.fingerprint import first_difference

VOCAB, SIZE = 6, 4
LINEAR, EMBEDDING = "vllm.model_executor.layers.linear", "vllm.model_executor.layers.vocab_parallel_embedding"


class Linear(nn.Module):
    def __init__(self, weight: Tensor, outputs: list[int]) -> None:
        super().__init__()
        self.weight, self.bias, self.params_dtype = nn.Parameter(weight), None, weight.dtype
        self.output_partition_sizes, self.input_size, self.tp_rank, self.tp_size = outputs, weight.shape[1], 0, 1
        self.num_kv_head_replicas = 1
        self.quant_method = SimpleNamespace(apply=lambda layer, x, bias: x @ layer.weight.T)


class QKV(Linear):
    pass


class Embedding(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.shard_indices = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=len(weight))


class Head(Embedding):
    pass


class Other(nn.Module):
    """No layer of any model here."""


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    linear: Any = ModuleType(LINEAR)
    linear.LinearBase, linear.QKVParallelLinear = Linear, QKV
    linear.ColumnParallelLinear = linear.MergedColumnParallelLinear = Other
    linear.ReplicatedLinear = linear.RowParallelLinear = Other
    embedding: Any = ModuleType(EMBEDDING)
    embedding.VocabParallelEmbedding, embedding.ParallelLMHead = Embedding, Head
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, LINEAR, linear)
    monkeypatch.setitem(sys.modules, EMBEDDING, embedding)


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embed_tokens": VOCAB, "qkv.q_proj": SIZE, "qkv.k_proj": 2, "qkv.v_proj": 2}
    names = {name.replace("qkv.", "attn."): rows for name, rows in shapes.items()}
    return {f"{name}.weight": torch.randn(rows, SIZE, generator=generator) for name, rows in names.items()}


class Model(nn.Module):
    """One layer with a head that is the embedding's own module, that is one of its own, or that is missing."""

    def __init__(self, stored: dict[str, Tensor], *, head: str = "tied", attention: bool = True) -> None:
        super().__init__()
        self.embed_tokens = Embedding(stored["embed_tokens.weight"].clone())
        if head == "own":
            self.lm_head = Head(stored["embed_tokens.weight"].clone())
        if attention:
            self.attn = nn.Module()
            parts = [stored[f"attn.{name}_proj.weight"] for name in "qkv"]
            self.attn.qkv_proj = QKV(torch.cat(parts), [len(part) for part in parts])
        apply: Callable[[Any, Tensor, Any], Tensor] = lambda module, x, _bias: x @ module.weight.T  # noqa: E731
        if head != "none":
            self.logits_processor = SimpleNamespace(_apply_head=apply)


@pytest.mark.parametrize("head", ["tied", "own"])
def test_a_model_that_computes_with_its_files_passes(head: str) -> None:
    stored = weights()
    assert first_difference(Model(stored, head=head), stored) is None


@pytest.mark.parametrize("head", ["tied", "own"])
def test_a_model_without_a_layer_for_q_is_refused_whatever_its_head_is(head: str) -> None:
    stored = weights()
    found = first_difference(Model(stored, head=head, attention=False), stored)
    assert found == "q: vLLM has no such layer in Model"


def test_a_version_without_q_is_refused_by_its_name() -> None:
    stored = weights()
    model = Model(stored)
    del stored["attn.q_proj.weight"]
    found = first_difference(model, stored)
    assert found == "attn.q_proj.weight, which the version does not have in the shape of vLLM's layer"


def test_a_model_without_an_embedding_has_nothing_that_its_head_could_be() -> None:
    stored = weights()
    model = Model(stored)
    del model.embed_tokens
    assert first_difference(model, stored) == "embedding: vLLM has no such layer in Model"


def test_a_model_that_computes_states_has_no_head_to_compare_and_all_else() -> None:
    stored = weights()
    model: Any = Model(stored, head="none")
    assert first_difference(model, stored, head=False) is None
    with torch.no_grad():
        model.attn.qkv_proj.weight[0] += 1
    assert first_difference(model, stored, head=False) == "attn.q_proj.weight"
    assert first_difference(Model(stored, head="none", attention=False), stored, head=False) is not None
