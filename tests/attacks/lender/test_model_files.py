"""What a stranger's model can make of the machine that loads it: nothing but its own files is opened."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.crypto.keys import Key
from shoal.errors import ModelError
from shoal.models import load as loading
from shoal.models.load import Policy, load
from tests.support.architectures import save_random


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of a machine that is lent."""
    Key.load_or_create(tmp_path / "lender" / "node.key")
    return tmp_path / "lender" / "node.key"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose tokenizer is all that its config says: there is no tokenizer.json to be read in its place."""
    directory = save_random(tmp_path / "model", "llama")
    (directory / "tokenizer.json").unlink()
    return directory


def say(directory: Path, name: str, **words: Any) -> None:
    path = directory / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | words))


BERT = {"tokenizer_class": "BertTokenizer", "eos_token": "[SEP]"}
# Where a file can be named so that transformers 5.22 makes a vocabulary of it.
WAYS: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("tokenizer_config.json", lambda key: {"vocab": key}),
    ("tokenizer_config.json", lambda key: {"init_inputs": [key]}),
    ("special_tokens_map.json", lambda key: {"vocab": key}),
    ("special_tokens_map.json", lambda key: {"vocab_file": key}),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_model_cannot_have_the_lenders_key_for_its_vocabulary(
    way: int, key: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, words = WAYS[way]
    say(model, "tokenizer_config.json", **BERT)
    say(model, name, **words(str(key)))
    with pytest.raises(ModelError, match=rf"{name} has '(vocab|vocab_file|init_inputs)', with which a file of this"):
        load(model)
    monkeypatch.setattr(loading, "check_foreign_model", lambda directory: None)
    assert stolen(load(model)) == key.read_text().strip(), "the attack must work where nobody looks"


def stolen(policy: Policy) -> str:
    """What an answer of the first token reads: a run's rewards tell it bit by bit to who chose them."""
    return policy.decode([0])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokenizer_config.json", {"merges": "/etc/passwd"}),
        ("tokenizer_config.json", {"monolingual_vocab_file": 3}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["/tmp/tokenizer.4.0.json"]}),
        ("tokenizer_config.json", {"sp_model_kwargs": {"model_file": "/etc/passwd"}}),
        ("tokenizer_config.json", {"mecab_kwargs": {"mecab_option": "-d /etc"}}),
        ("tokenizer_config.json", {"something_new": "etc"}),
        ("special_tokens_map.json", {"tokenizer_file": "/etc/passwd"}),
        ("config.json", {"attn_implementation": "somebody/kernel"}),
        ("config.json", {"text_config": {"backbone": "../../model"}}),
        ("config.json", {"transformers_weights": "adapter_model.bin"}),
        ("config.json", {"configuration_files": ["config.5.0.0.json"]}),
        ("model.safetensors.index.json", {"weight_map": {"lm_head.weight": "../other/model.safetensors"}}),
        ("model.safetensors.index.json", {"weight_map": {"lm_head.weight": "pytorch_model.bin"}}),
        ("adapter_config.json", {"base_model_name_or_path": "/home"}),
        ("tokenizer_config.json", {"vocab": {"a": 0}}),
    ],
)
def test_a_model_that_names_other_files_is_refused(
    name: str, words: dict[str, Any], tiny_dir: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(tiny_dir, tmp_path / "copy"))
    say(directory, name, **words)
    with pytest.raises(
        ModelError, match=r"could be read|reads as the name|must be \*\.safetensors|merge the adapter|other configs"
    ):
        load(directory)


def test_what_honest_tokenizers_say_of_themselves_is_taken(tiny_dir: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_dir, tmp_path / "copy"))
    said = {
        "name_or_path": "/home/somebody/model",
        "chat_template": "{{ messages[0]['content'] }}/..",
        "legacy": False,
        "added_tokens_decoder": {},
        "sp_model_kwargs": {},
        "vocab_file": None,
        "init_inputs": [],
        "vocab_size": 99,
        "image_token": "<|eos|>",
        "padding_side": "left",
        "model_input_names": ["input_ids"],
        "add_bos_token": True,
    }
    say(directory, "tokenizer_config.json", **said)
    say(directory, "special_tokens_map.json", eos_token="<|eos|>")
    say(directory, "config.json", _name_or_path="org/model")
    assert load(directory).encode("a")
