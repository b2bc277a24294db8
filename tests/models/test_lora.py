"""An adapted model starts as its base, trains its adapters alone, and is the same model for PEFT as for us."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.config import LoraConfig
from shoal.errors import ModelError
from shoal.models.adapter_files import FILES, MERGED, SETTINGS, TENSORS, Merged, read_adapter, write_adapter
from shoal.models.attention import Packed
from shoal.models.base import write_base_version
from shoal.models.load import AGREEMENT, Policy, disagreement, load, trainable
from shoal.models.lora import adapter_of, adapters_off, attach
from shoal.models.merge import Base, MergedWeights
from shoal.models.version_reader import VersionReader
from shoal.protocol.version_directory import DirectoryChannel
from tests.support.architectures import plain_model, save_random

LORA = LoraConfig(rank=4, alpha=6.0)
IDS = torch.arange(2, 40)


def logits(policy: Policy) -> Tensor:
    packed = Packed([len(IDS)])
    return policy.head(policy.hidden(IDS.unsqueeze(0), packed.positions_1T, packed))[0]


def adapted(directory: Path, config: LoraConfig = LORA, seed: int = 7, dtype: str = "float32") -> Policy:
    policy = load(directory, dtype)
    attach(policy.model, config, seed)
    return policy


@torch.no_grad()
def trained(policy: Policy) -> Policy:
    """As some steps of training would leave it: B is no longer zero."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in trainable(policy.model):
        if name.endswith("lora_B"):
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return policy


def version_of(policy: Policy, folder: Path, config: LoraConfig = LORA) -> tuple[DirectoryChannel, Path]:
    """The model of `folder/base` as version 0 and the policy's adapters as version 1 of a directory of versions."""
    channel, dtype = DirectoryChannel(folder / "weights", 5), str(policy.model.dtype).removeprefix("torch.")
    with channel.publish(0) as staging:
        write_base_version(folder / "base", staging, dtype)
    first = channel.version(0)
    assert first is not None
    base = Base(first.root, load(folder / "base", dtype).weights())
    adapter = adapter_of(policy.trained_weights(), config)
    with channel.publish(1) as staging:
        merged = MergedWeights(base, adapter, "version 1").root()
        write_adapter(staging, adapter, Merged(base=first.root, dtype=dtype, weights=merged))  # type: ignore[arg-type]
    return channel, folder / "weights" / "v000001"


@pytest.fixture
def base_dir(tiny_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dir, tmp_path / "base"))


def test_an_adapted_model_starts_as_its_base_and_trains_nothing_else(base_dir: Path) -> None:
    policy = adapted(base_dir)
    assert torch.equal(logits(policy), logits(load(base_dir)))
    names = [name for name, _ in trainable(policy.model)]
    assert len(names) == 2 * 2 * 7
    assert all(name.endswith(("lora_A", "lora_B")) for name in names)
    assert policy.weights().keys() == load(base_dir).weights().keys()
    logits(policy).sum().backward()
    assert all(p.grad is None for name, p in policy.model.named_parameters() if name not in names)


def test_a_seed_draws_the_same_adapters_whatever_else_is_adapted(base_dir: Path) -> None:
    one, same, other = (adapter_of(adapted(base_dir, seed=seed).trained_weights(), LORA) for seed in (1, 1, 2))
    few = LoraConfig(rank=4, alpha=6.0, targets=["v_proj"])
    part = adapter_of(adapted(base_dir, few, 1).trained_weights(), few)
    assert {name.rpartition(".")[2] for name in part.pairs} == {"v_proj"}
    for name, pair in one.pairs.items():
        assert torch.equal(pair.a_ri, same.pairs[name].a_ri)
        assert not torch.equal(pair.a_ri, other.pairs[name].a_ri)
        assert not pair.b_or.any()
        if name in part.pairs:
            assert torch.equal(pair.a_ri, part.pairs[name].a_ri)


def test_with_its_adapters_off_a_trained_model_is_its_base(base_dir: Path) -> None:
    policy = trained(adapted(base_dir))
    before, base = logits(policy), logits(load(base_dir))
    with adapters_off(policy.model):
        assert torch.equal(logits(policy), base)
    assert torch.equal(logits(policy), before)
    assert not torch.allclose(before, base, atol=1e-2)


@pytest.mark.parametrize("architecture", ["qwen3", "gpt_neox", "phi3"])
def test_any_architecture_gives_peft_the_same_logits_as_our_merge(architecture: str, tmp_path: Path) -> None:
    heads = {"num_key_value_heads": 2, "head_dim": 16} if architecture == "qwen3" else {}
    base = save_random(tmp_path / "base", architecture, **heads)
    policy = trained(adapted(base))
    channel, folder = version_of(policy, tmp_path)
    merged = load(base)
    merged.set_weights(VersionReader(channel, "float32").read(folder), "version 1")
    theirs = PeftModel.from_pretrained(plain_model(base), str(folder))
    with torch.no_grad():
        expected = theirs(input_ids=IDS.unsqueeze(0), use_cache=False).logits[0]
        spread = float(expected.std())
        assert float((logits(merged) - expected).abs().max()) < 1e-4 * spread
        assert float((logits(policy) - expected).abs().max()) < 1e-4 * spread
        assert float((logits(load(base)) - expected).abs().max()) > 0.1 * spread


def test_in_bfloat16_the_base_is_rounded_and_adapters_are_not(base_dir: Path, tmp_path: Path) -> None:
    policy = trained(adapted(base_dir, dtype="bfloat16"))
    assert {p.dtype for _, p in trainable(policy.model)} == {torch.float32}
    channel, folder = version_of(policy, tmp_path)
    weights = VersionReader(channel, "bfloat16").read(folder)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    merged = load(base_dir, "bfloat16")
    merged.set_weights(weights, "version 1")
    with torch.no_grad():
        assert disagreement(logits(policy), logits(merged)) < AGREEMENT[torch.bfloat16]
    with pytest.raises(ModelError, match=r"is an adapter of bfloat16 weights, model\.dtype is 'float32'"):
        VersionReader(channel, "float32").read(folder)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"targets": ["v_proj", "qkv"]},
            "LlamaForCausalLM has no linear layer 'qkv'; it has down_proj, gate_proj",
        ),
        ({"targets": ["lm_head"]}, "LlamaForCausalLM has no linear layer 'lm_head'; it has"),
        ({"rank": 65}, r"train.lora.rank = 65: model.layers.0.self_attn.q_proj is 64 x 64, so its rank is at most 64"),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(base_dir: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        adapted(base_dir, LoraConfig(**changes))


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)


def first(tensors: dict[str, Tensor], part: str) -> str:
    return next(name for name in sorted(tensors) if part in name)


def put_nan(tensors: dict[str, Tensor]) -> None:
    tensors[first(tensors, "lora_B")][0, 0] = float("nan")


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: edit(d, SETTINGS, r=8), r"has rank 4 in A and 4 in B; adapter_config.json says r = 8"),
    (lambda d: edit(d, SETTINGS, r=0), r"adapter_config.json: not what belongs to an adapter version \(r = 0: "),
    (lambda d: edit(d, SETTINGS, lora_alpha=-1), r"lora_alpha = -1: "),
    (lambda d: edit(d, SETTINGS, target_modules=["q_proj"]), r"adapts down_proj, .*; adapter_config.json says q_proj"),
    (lambda d: edit(d, SETTINGS, use_dora=True), r"use_dora = True: "),
    (lambda d: edit(d, SETTINGS, peft_type="IA3"), r"peft_type = 'IA3': "),
    (lambda d: edit(d, SETTINGS, rank_pattern={"q_proj": 2}), r"rank_pattern = "),
    (lambda d: (d / SETTINGS).write_text("{"), r"adapter_config.json: not what belongs to an adapter version"),
    (lambda d: (d / MERGED).unlink(), r"merged.json: not what belongs to an adapter version"),
    (lambda d: (d / TENSORS).write_bytes(b"\xff" * 99), r"adapter_model.safetensors: not a readable safetensors file"),
    (lambda d: edit_tensors(d, put_nan), r"lora_B.weight' has entries that are not finite"),
    (lambda d: edit_tensors(d, lambda t: t.pop(first(t, "lora_A"))), r"lacks '.*lora_A.weight'"),
    (lambda d: edit_tensors(d, lambda t: t.update(x=torch.ones(2, 2))), r"'x' does not belong to an adapter"),
    (lambda d: edit_tensors(d, lambda t: t.update({k: v.half() for k, v in t.items()})), r"is torch.float16 with 2"),
    (lambda d: edit(d, MERGED, weights="0" * 64), r"merged weights have hash [0-9a-f]{12}, the version names 000000"),
    (lambda d: edit(d, MERGED, base="0" * 64), r"is an adapter of base 000000000000, this run's version 0 has root"),
    (lambda d: edit(d, SETTINGS, lora_alpha=7), r"merged weights have hash"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGE)
def test_a_damaged_or_foreign_adapter_is_refused_by_name(
    damage: Callable[[Path], object], why: str, base_dir: Path, tmp_path: Path
) -> None:
    channel, folder = version_of(trained(adapted(base_dir)), tmp_path)
    damage(folder)
    with pytest.raises(ModelError, match=why):
        VersionReader(channel, "float32").read(folder)


def test_an_adapter_of_another_base_of_the_same_shape_is_refused_by_name(base_dir: Path, tmp_path: Path) -> None:
    _, folder = version_of(trained(adapted(base_dir)), tmp_path)
    other = tmp_path / "other"
    shutil.copytree(base_dir, other / "base")
    weights = load_file(other / "base" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, other / "base" / "model.safetensors", {"format": "pt"})
    channel, _ = version_of(adapted(other / "base"), other)
    with pytest.raises(ModelError, match=r"v000001: is an adapter of base \w{12}, this run's version 0 has root"):
        VersionReader(channel, "float32").read(folder)


def test_the_same_adapter_gives_the_same_bytes_and_comes_back(base_dir: Path, tmp_path: Path) -> None:
    policy = trained(adapted(base_dir))
    _, folder = version_of(policy, tmp_path)
    adapter, merged = read_adapter(folder)
    again = tmp_path / "again"
    again.mkdir()
    write_adapter(again, adapter, merged)
    assert [(again / name).read_bytes() for name in FILES] == [(folder / name).read_bytes() for name in FILES]
    for name, pair in adapter_of(policy.trained_weights(), LORA).pairs.items():
        assert torch.equal(pair.a_ri, adapter.pairs[name].a_ri)
        assert torch.equal(pair.b_or, adapter.pairs[name].b_or)
