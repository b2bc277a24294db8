"""An adapter on disk, in PEFT's format: `adapter_model.safetensors` and `adapter_config.json`, which `peft` loads.

A version has `merged.json` beside them: the root hash of the base that it belongs to, and the hash of the weights that
merging gives (`merge`). It is a file of the version, so the version's own root hash fixes both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.errors import ModelError
from shoal.files import read_regular
from shoal.protocol.version_directory import ADAPTER

TENSORS = "adapter_model.safetensors"
SETTINGS = ADAPTER
MERGED = "merged.json"
FILES = (TENSORS, SETTINGS, MERGED)
# How PEFT names what belongs to a layer of the model.
PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
WEIGHT = ".weight"
# How they end where a model is trained with them (`lora.AdaptedLinear`).
ADAPTER_PARAMETERS = (".lora_A", ".lora_B")
MAX_JSON = 1 << 20

M = TypeVar("M", bound=BaseModel)
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Pair:
    """What one linear layer is changed by: B A, times the adapter's scale. Both in float32."""

    a_ri: Tensor
    b_or: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapters of a model's linear layers, by the layers' names."""

    rank: int
    alpha: float
    pairs: Mapping[str, Pair]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Merged(BaseModel):
    """What an adapter says of the weights that it makes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    base: Hash
    """Root hash of the version that it is merged into."""
    dtype: Literal["float32", "bfloat16"]
    """Number format of that version's weights, and of the merged ones."""
    weights: Hash
    """Hash of the merged weights."""


class _Settings(BaseModel):
    """The part of PEFT's settings that decides what an adapter means; all others are as PEFT has them by default."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1)]
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    target_modules: list[str]
    bias: Literal["none"] = "none"
    fan_in_fan_out: Literal[False] = False
    use_rslora: Literal[False] = False
    use_dora: Literal[False] = False
    lora_bias: Literal[False] = False
    rank_pattern: Annotated[dict[str, int], Field(max_length=0)] = {}
    alpha_pattern: Annotated[dict[str, float], Field(max_length=0)] = {}
    modules_to_save: None = None
    layer_replication: None = None


def write_adapter(folder: Path, adapter: Adapter, merged: Merged) -> None:
    """Writes an adapter's files; the same adapter gives the same bytes."""
    tensors = {}
    for name, pair in adapter.pairs.items():
        tensors[f"{PREFIX}{name}{A}"] = pair.a_ri.contiguous()
        tensors[f"{PREFIX}{name}{B}"] = pair.b_or.contiguous()
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": _targets(adapter.pairs),
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1))
    (folder / MERGED).write_text(merged.model_dump_json(indent=1))


def is_adapter(folder: Path) -> bool:
    """Whether a version is an adapter rather than a whole model."""
    return (folder / SETTINGS).is_file()


def read_adapter(folder: Path) -> tuple[Adapter, Merged]:
    """An adapter whose files agree with each other, in memory; a ModelError that names the file otherwise."""
    settings, merged = _parse(_Settings, folder / SETTINGS), _parse(Merged, folder / MERGED)
    path = folder / TENSORS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error
    pairs = {}
    for key in sorted(tensors):
        if not key.startswith(PREFIX) or not key.endswith((A, B)):
            raise ModelError(f"{path}: {key!r:.100} does not belong to an adapter; expected {PREFIX}LAYER{A} and {B}")
        name = key.removeprefix(PREFIX).removesuffix(A).removesuffix(B)
        pairs[name] = Pair(*(_matrix(path, tensors, f"{PREFIX}{name}{part}") for part in (A, B)))
    for name, pair in pairs.items():
        if (found := (pair.a_ri.shape[0], pair.b_or.shape[1])) != (settings.r, settings.r):
            raise ModelError(
                f"{path}: {name} has rank {found[0]} in A and {found[1]} in B; {SETTINGS} says r = {settings.r}"
            )
    if (found_targets := _targets(pairs)) != sorted(settings.target_modules):
        raise ModelError(
            f"{path}: adapts {', '.join(found_targets) or 'nothing'}; {SETTINGS} says "
            f"{', '.join(sorted(settings.target_modules)) or 'nothing'}"
        )
    return Adapter(settings.r, settings.lora_alpha, pairs), merged


def _matrix(path: Path, tensors: Mapping[str, Tensor], key: str) -> Tensor:
    tensor = tensors.get(key)
    if tensor is None:
        raise ModelError(f"{path}: lacks {key!r:.100}; an adapter has A and B of every layer that it changes")
    if tensor.dtype != torch.float32 or tensor.ndim != 2:
        raise ModelError(f"{path}: {key!r:.100} is {tensor.dtype} with {tensor.ndim} axes; expected a float32 matrix")
    if not bool(tensor.isfinite().all()):
        raise ModelError(f"{path}: {key!r:.100} has entries that are not finite")
    return tensor.clone()  # the file may be removed, or replaced, while it is mapped


def _targets(pairs: Mapping[str, Pair]) -> list[str]:
    """The last parts of the layers' names, by which PEFT finds them."""
    return sorted({name.rpartition(".")[2] for name in pairs})


def _parse(kind: type[M], path: Path) -> M:
    try:
        return kind.model_validate_json(read_regular(path, MAX_JSON))
    except (OSError, ValueError) as error:
        why = _first(error) if isinstance(error, ValidationError) else str(error)
        raise ModelError(f"{path}: not what belongs to an adapter version ({why})") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "content"
    return f"{where} = {first['input']!r:.60}: {first['msg']}"
