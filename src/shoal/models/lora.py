"""LoRA (arXiv:2106.09685): linear layers that are trained through the product of two small matrices beside them.

A layer with an adapter computes W x + scale * B (A x) with W frozen. A is drawn from the run's seed and the layer's
name, B is zero, so an adapted model starts as its base. Names of the model's own parameters do not change. With its
adapters off, a model is its base again: the reference of the KL term needs no second copy.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from shoal.config import LoraConfig
from shoal.devices import CPU, META
from shoal.errors import ModelError
from shoal.models.adapter_files import ADAPTER_PARAMETERS, Adapter, Pair


class AdaptedLinear(nn.Module):
    """A linear layer with its adapter; it has the layer's own parameters, under their own names."""

    def __init__(self, linear: nn.Linear, a_ri: Tensor, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.lora_A = nn.Parameter(a_ri)
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, a_ri.shape[0], device=a_ri.device))
        self.scale = scale
        self.is_on = True

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        if not self.is_on:
            return out
        low = F.linear(x.to(self.lora_A.dtype), self.lora_A)
        return out + (self.scale * F.linear(low, self.lora_B)).to(out.dtype)


def attach(model: PreTrainedModel, config: LoraConfig, seed: int) -> None:
    """Gives each targeted layer an adapter and freezes everything else; a ModelError names what does not fit."""
    layers = targeted(model, config)
    model.requires_grad_(False)
    for name, linear in layers.items():
        path, _, leaf = name.rpartition(".")
        a_ri = _first_a(name, config.rank, linear.in_features, seed).to(linear.weight.device)
        setattr(model.get_submodule(path), leaf, AdaptedLinear(linear, a_ri, config.alpha / config.rank))


def check_targets(directory: Path, config: LoraConfig) -> None:
    """A ModelError if the model in a directory cannot be adapted as the config says; its weights are not read."""
    with META:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory, local_files_only=True))
    targeted(model, config)


def targeted(model: PreTrainedModel, config: LoraConfig) -> dict[str, nn.Linear]:
    """The layers that get an adapter, by name: those whose last part is a target, or all but the output head."""
    head = model.get_output_embeddings()
    linears = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    there = sorted({name.rpartition(".")[2] for name in linears})
    what = type(model).__name__
    if not linears:
        raise ModelError(f"train.lora: {what} has no linear layers that can be adapted; train it whole")
    if unknown := sorted(set(config.targets) - set(there)):
        raise ModelError(f"train.lora.targets: {what} has no linear layer {unknown[0]!r}; it has {', '.join(there)}")
    chosen = {name: module for name, module in linears.items() if name.rpartition(".")[2] in (config.targets or there)}
    for name, module in chosen.items():
        if config.rank > (most := min(module.in_features, module.out_features)):
            raise ModelError(
                f"train.lora.rank = {config.rank}: {name} is {module.out_features} x {module.in_features}, so its rank "
                f"is at most {most}; lower it, or leave {name.rpartition('.')[2]} out of train.lora.targets"
            )
    return chosen


def _first_a(name: str, rank: int, columns: int, seed: int) -> Tensor:
    """Uniform in +- 1 / sqrt(columns), PEFT's choice; of one layer, whatever the others are."""
    drawn = hashlib.sha256(f"shoal lora {seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(drawn[:7], "little"))
    a_ri: Tensor = torch.rand(rank, columns, generator=generator) * 2 - 1
    return a_ri / math.sqrt(columns)


def adapter_of(tensors: Mapping[str, Tensor], config: LoraConfig) -> Adapter:
    """A copy of adapters that stand in a model under these names (`Policy.trained_weights`)."""
    layers = sorted({name.rpartition(".")[0] for name in tensors})
    parts = ((tensors[f"{layer}{part}"].detach() for part in ADAPTER_PARAMETERS) for layer in layers)
    pairs = {
        layer: Pair(*(matrix.to(CPU, torch.float32, copy=True) for matrix in matrices))
        for layer, matrices in zip(layers, parts, strict=True)
    }
    return Adapter(config.rank, config.alpha, pairs)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model computes as its base while the block runs."""
    layers = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    for layer in layers:
        layer.is_on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_on = True
