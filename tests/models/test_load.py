"""A model directory is used as it is, or refused with its name and what to do; weights go in whole or not at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.errors import ModelError
from shoal.models.attention import Packed
from shoal.models.load import Policy, load, trainable
from shoal.models.weights import WEIGHTS, read_weights
from tests.support.architectures import save_random


@pytest.fixture
def copy_dir(tiny_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dir, tmp_path / "copy"))


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove_tokenizer(directory: Path) -> None:
    for path in directory.glob("*token*"):
        path.unlink()


def truncate_weights(directory: Path) -> None:
    data = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(data[: len(data) // 2])


def scribble_on_weights(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(b"\xff" * 1000)


def remove_a_tensor(directory: Path) -> None:
    weights = load_file(directory / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / WEIGHTS, {"format": "pt"})


def put_nan(directory: Path) -> None:
    weights = load_file(directory / WEIGHTS)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, directory / WEIGHTS, {"format": "pt"})


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, r"no config\.json there; give a directory saved by save_pretrained"),
    (lambda d: (d / "config.json").unlink(), r"no config\.json there; give a directory saved by save_pretrained"),
    (lambda d: (d / "config.json").write_text("{"), r"config\.json is not JSON"),
    (lambda d: edit_config(d, model_type="no_such_model"), "no usable tokenizer|cannot be loaded"),
    (remove_tokenizer, r"no usable tokenizer .*; save one beside the model with tokenizer\.save_pretrained"),
    (lambda d: (d / "tokenizer.json").write_text("{}"), "no usable tokenizer"),
    (lambda d: (d / WEIGHTS).unlink(), r"no \*\.safetensors there"),
    (truncate_weights, "cannot be loaded"),
    (scribble_on_weights, "cannot be loaded"),
    (remove_a_tensor, r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
    (put_nan, "LlamaForCausalLM gives logits that are not finite"),
    (lambda d: edit_config(d, hidden_size=32), "cannot be loaded|lacks"),
    (lambda d: edit_config(d, num_key_value_heads=3), "cannot be loaded|cannot be run"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_a_damaged_directory_is_refused_with_its_name_and_the_fault(
    copy_dir: Path, damage: Callable[[Path], object], said: str
) -> None:
    load(copy_dir)
    damage(copy_dir)
    with pytest.raises(ModelError, match=rf"^model {copy_dir}: (.*)({said})"):
        load(copy_dir)


def test_a_directory_that_never_was_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"model {tmp_path}/nowhere: no config.json"):
        load(tmp_path / "nowhere")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copy_dir: Path, tiny_policy: Policy) -> None:
    tiny_policy.tokenizer.add_tokens(["one token too many"])
    tiny_policy.tokenizer.save_pretrained(copy_dir)
    tokens, rows = len(tiny_policy.tokenizer), tiny_policy.vocab
    with pytest.raises(ModelError, match=f"tokenizer has {tokens} tokens, the model {rows}"):
        load(copy_dir)


def test_a_model_whose_answers_could_not_end_is_refused(tmp_path: Path) -> None:
    save_random(tmp_path, "llama", eos_token_id=None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="names an eos token; answers could not end"):
        load(tmp_path)


def test_every_eos_that_tokenizer_or_generation_config_names_ends_an_answer(copy_dir: Path) -> None:
    path = copy_dir / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [1, 7]}))
    assert load(copy_dir).eos_ids == {1, 7}


def test_tied_weights_appear_once(tiny_policy: Policy) -> None:
    names = set(tiny_policy.weights())
    assert tiny_policy.model.config.tie_word_embeddings
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert names == {name for name, _ in trainable(tiny_policy.model)}


def test_untied_weights_appear_both(tmp_path: Path) -> None:
    policy = load(save_random(tmp_path, "llama", tie_word_embeddings=False))
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(policy.weights())


def test_a_base_model_in_several_files_is_a_version_like_any_other(tmp_path: Path, tiny_policy: Policy) -> None:
    tiny_policy.model.save_pretrained(tmp_path, max_shard_size="50KB")
    tiny_policy.tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    weights = read_weights(tmp_path, "float32")
    assert weights.keys() == tiny_policy.weights().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in tiny_policy.weights().items())


def changed(weights: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    name = "model.layers.1.mlp.up_proj.weight"
    other = {key: tensor + 1 for key, tensor in weights.items()}
    match how:
        case "missing":
            del other[name]
        case "extra":
            other["model.layers.2.mlp.up_proj.weight"] = torch.zeros(3)
        case "shape":
            other[name] = other[name].T.contiguous()
    return other


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", r"version 4: lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ("extra", r"version 4: has model\.layers\.2\.mlp\.up_proj\.weight"),
        ("shape", r"version 4: model\.layers\.1\.mlp\.up_proj\.weight has shape \(64, 192\), expected \(192, 64\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(tiny_policy: Policy, how: str, said: str) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_policy.weights().items()}
    with pytest.raises(ModelError, match=said):
        tiny_policy.set_weights(changed(before, how), "version 4")
    for name, tensor in tiny_policy.weights().items():
        assert torch.equal(tensor, before[name]), name


@torch.no_grad()
def test_weights_survive_a_round_trip_through_a_file(tmp_path: Path, tiny_dir: Path) -> None:
    theirs, ours = load(tiny_dir), load(tiny_dir)
    for parameter in theirs.model.parameters():
        parameter.add_(torch.randn_like(parameter))
    save_file(theirs.weights(), tmp_path / WEIGHTS)
    ours.set_weights(read_weights(tmp_path, "float32"), "version 1")
    layout, row_1T = Packed([9]), torch.arange(5, 14).unsqueeze(0)
    expected_1TD = theirs.hidden(row_1T, layout.positions_1T, layout)
    assert torch.equal(ours.hidden(row_1T, layout.positions_1T, layout), expected_1TD)
    assert torch.equal(ours.head(expected_1TD), theirs.head(expected_1TD)), "the tied head must have followed"


def test_setting_weights_keeps_the_parameters_that_an_optimizer_holds(tiny_policy: Policy) -> None:
    held = [id(parameter) for parameter in tiny_policy.model.parameters()]
    tiny_policy.set_weights({name: tensor + 1 for name, tensor in tiny_policy.weights().items()}, "version 1")
    assert [id(parameter) for parameter in tiny_policy.model.parameters()] == held


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"\xff" * 64, b'{"a": 1}'])
def test_a_file_that_is_no_safetensors_is_a_named_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"{path}: not a readable safetensors file"):
        read_weights(tmp_path, "float32")


def test_a_missing_weights_file_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"nowhere/{WEIGHTS}: not a readable safetensors file"):
        read_weights(tmp_path / "nowhere", "float32")


def test_bfloat16_is_loaded_as_such(tiny_dir: Path) -> None:
    policy = load(tiny_dir, "bfloat16")
    assert {tensor.dtype for tensor in policy.weights().values()} == {torch.bfloat16}


def test_prompts_go_through_the_chat_template_where_there_is_one(tiny_policy: Policy) -> None:
    plain = tiny_policy.encode("spell cat")
    tiny_policy.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
    )
    assert tiny_policy.tokenizer.decode(tiny_policy.encode("spell cat")) == "[user]spell cat[bot]"
    assert tiny_policy.encode("spell cat") != plain


def test_decoding_leaves_special_tokens_out(tiny_policy: Policy) -> None:
    text = tiny_policy.tokenizer.encode("tac", add_special_tokens=False)
    assert tiny_policy.decode([*text, 1]) == "tac"


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("architecture", "changes", "most"),
    [
        ("llama", {}, 128),
        ("mistral", {"sliding_window": 40}, 40),
        ("mistral", {"sliding_window": 400}, 128),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": False}, 128),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}, 40),
        ("gemma3_text", {"sliding_window": 40, "head_dim": 16}, 40),
        ("phimoe", {"sliding_window": 40, "num_local_experts": 2}, 40),
        (
            "phi3",
            {
                "sliding_window": None,
                "original_max_position_embeddings": 50,
                "rope_parameters": LONGROPE | {"original_max_position_embeddings": 50},
            },
            50,
        ),
    ],
)
def test_the_longest_sequence_is_the_longest_that_neighbours_and_windows_leave_alone(
    tmp_path: Path, architecture: str, changes: dict[str, Any], most: int
) -> None:
    assert load(save_random(tmp_path, architecture, **{"num_key_value_heads": 2} | changes)).max_positions == most


@pytest.mark.parametrize("text", ["", "{", "not json", "\xff"])
def test_a_config_that_is_not_json_is_told_so(tiny_dir: Path, tmp_path: Path, text: str) -> None:
    broken = shutil.copytree(tiny_dir, tmp_path / "model")
    (broken / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json is not JSON .*save the model again"):
        load(broken)


def test_weights_that_are_a_pickle_are_refused_by_name(tiny_dir: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_dir, tmp_path / "model")
    (broken / WEIGHTS).rename(broken / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pytorch_model\.bin, a pickle, which may run code"):
        load(broken)
    (broken / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors there, no weights"):
        load(broken)


def test_code_that_lies_beside_a_model_is_not_run_and_nobody_is_asked(
    copy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    own = "from transformers import LlamaConfig\n\n\nclass Own(LlamaConfig):\n    model_type = 'own'\n"
    (copy_dir / "own.py").write_text(f"open({str(mark)!r}, 'w')\n{own}")
    edit_config(copy_dir, model_type="own", auto_map={"AutoConfig": "own.Own"})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelError, match=r"no usable tokenizer|cannot be loaded"):
        load(copy_dir)
    assert not mark.exists()
