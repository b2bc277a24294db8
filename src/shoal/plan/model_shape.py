"""The shape of a run's model, from its config.json alone: no weights, no tokenizer, no memory.

A model that is not on this machine is known by its directory's name if Shoal comes with its config (`known_models/`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PretrainedConfig

from shoal.config import LoraConfig, RunConfig
from shoal.devices import DTYPES, META
from shoal.errors import ModelError, first_line
from shoal.models.base import base_model_dir
from shoal.models.load import Policy, model_on_meta
from shoal.models.lora import targeted
from shoal.train.sharding import blocks

KNOWN = Path(__file__).parent / "known_models"
# Tokens of the row that is counted on.
ROW = 16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model is made of, as far as a plan needs it."""

    kind: str
    parameters: int
    blocks: int
    block_parameters: int
    """Of the largest block."""
    outside_parameters: int
    """Of what is in no block: embeddings, the last norm and the head."""
    hidden: int
    vocab: int
    kv_values: int
    """Keys and values of one token, of all layers."""
    query_values: int
    """Heads times head size, of all layers: attention's work per pair of tokens."""
    flops_per_token: float
    """Of one forward pass, without attention's scores and without the head."""
    max_positions: int
    adapter_parameters: int = 0
    """Of the run's adapters, where it trains those."""

    @property
    def head_flops(self) -> float:
        """Of one token's logits."""
        return 2.0 * self.vocab * self.hidden

    @property
    def pair_flops(self) -> float:
        """Of attention's scores and sums of one pair of tokens."""
        return 4.0 * self.query_values

    @property
    def adapter_flops(self) -> float:
        """Of one token in all adapters."""
        return 2.0 * self.adapter_parameters

    def forward_flops(self, context: float) -> float:
        """Of one token that sees so many others, without the head."""
        return self.flops_per_token + self.pair_flops * context


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A model's transformers config, and what a reader has to know about where it is from."""

    config: PretrainedConfig
    note: str = ""


def find_config(config: RunConfig) -> FoundConfig:
    """The transformers config of a run's base model, which need not be here; a ModelError if its shape is unknown."""
    directory = base_model_dir(config)
    if (directory / "config.json").is_file():
        return FoundConfig(_read(directory / "config.json"))
    source = config.model.source
    if source == "tiny":
        return FoundConfig(_tiny(config), "the tiny model is not built yet; shoal run builds it")
    known = {path.stem: path for path in KNOWN.glob("*.json")}
    if (path := known.get(directory.name.lower())) is None:
        raise ModelError(
            f'model.source = "{source}": no config.json there, and no model of that name is known here '
            f"({', '.join(sorted(known))}); give a directory with the model's config.json, which is all a plan needs"
        )
    return FoundConfig(
        _read(path),
        f"{source} is not on this machine: its shape is that of {path.stem}, whose config.json comes with Shoal",
    )


def _read(path: Path) -> PretrainedConfig:
    try:
        found: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many types for a config that it does not know
        raise ModelError(f"model {path}: not a usable config ({first_line(error)})") from error
    return found


def _tiny(config: RunConfig) -> PretrainedConfig:
    from shoal.models.tiny import build_tokenizer, tiny_architecture
    from shoal.tasks.build import build_source

    tokenizer = build_tokenizer(build_source(config.model.tiny.warm_tasks or config.tasks))
    return tiny_architecture(config.model.tiny, tokenizer)


def policy_on_meta(config: PretrainedConfig, dtype: str) -> Policy:
    """A policy without numbers and without a tokenizer: every tensor is on the meta device and takes no memory."""
    name = (config.architectures or [config.model_type])[0]
    try:
        model = model_on_meta(config, DTYPES[dtype])
    except Exception as error:  # a config that does not fit together fails in any way
        raise ModelError(f"model {name}: cannot be built from its config ({first_line(error)})") from error
    return Policy(model, cast("Any", None), frozenset())  # nothing here is text


def measure_shape(policy: Policy, lora: LoraConfig | None = None) -> ModelShape:
    """Counts parameters, and runs a short row to see what each layer keeps and computes."""
    model, probe = policy.model, _Probe()
    adapted = targeted(model, lora).values() if lora else ()
    counter = FlopCounterMode(display=False)
    ids_1T = torch.zeros(1, ROW, dtype=torch.long, device=META)
    try:
        with torch.no_grad(), counter:
            policy.hidden(ids_1T, torch.arange(ROW, device=META).unsqueeze(0), probe)
    except Exception as error:  # whatever an architecture does with a call that it does not expect
        raise ModelError(f"{type(model).__name__} is not supported: cannot be run ({first_line(error)})") from error
    sizes = [_size(block) for block in blocks(model)]
    return ModelShape(
        kind=type(model).__name__,
        parameters=_size(model),
        blocks=len(sizes),
        block_parameters=max(sizes),
        outside_parameters=_size(model) - sum(sizes),
        hidden=policy.hidden_size,
        vocab=policy.vocab,
        kv_values=probe.kv,
        query_values=probe.queries,
        flops_per_token=counter.get_total_flops() / ROW,
        max_positions=policy.max_positions,
        adapter_parameters=sum(lora.rank * (m.in_features + m.out_features) for m in adapted) if lora else 0,
    )


class _Probe:
    """Attention that computes nothing and adds up how many numbers one token brings to it."""

    longest = ROW

    def __init__(self) -> None:
        self.queries = self.kv = 0

    def attend(self, layer: int, q_1HTD: Tensor, k_1hTD: Tensor, v_1hTD: Tensor, scale: float) -> Tensor:
        del layer, scale
        self.queries += q_1HTD.numel() // ROW
        self.kv += (k_1hTD.numel() + v_1hTD.numel()) // ROW
        return q_1HTD.new_empty(1, ROW, q_1HTD.shape[1], v_1hTD.shape[-1])


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
