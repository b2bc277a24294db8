"""Allow-list for model files from strangers: what config and tokenizer may say, checked before transformers reads them.

transformers hands whatever a tokenizer's config holds to the tokenizer as arguments, and opens some of them as files. A
vocabulary that is a file of this machine would come back to the author of the config: answers are made of it, and
their rewards are told. So text is taken only where it is known what transformers does with it, and never where a file
could be named; weights are the safetensors of the directory itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ModelError
from shoal.files import parse_json

# Both are arguments of the tokenizer; the second is given after transformers has put in its own paths.
ARGUMENTS = ("tokenizer_config.json", "special_tokens_map.json")
# Arguments that may be text: tokens, and what transformers compares, shows or puts its own value in the place of.
TEXT = frozenset(
    {
        *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"),
        *("auto_map", "backend", "chat_template", "errors", "language", "model_input_names", "name_or_path"),
        *("never_split", "padding_side", "processor_class", "response_schema", "response_template", "src_lang", "task"),
        *("tgt_lang", "tokenizer_class", "tokenizer_type", "transformers_version", "truncation", "truncation_side"),
        *("truncation_strategy", "version"),
    }
)
# A number would do as well as a name: it is a file that this process has open.
NAMES_A_FILE = re.compile(r".*_files?|vocab|merges|init_inputs|tokenizer_object", re.DOTALL)
# In a model's config nothing is a path but where it was saved from, which is for people, and code that is never run.
PATH = re.compile(r".*([/\\\0]|\.\.).*", re.DOTALL)
NOT_OPENED = ("_name_or_path", "name_or_path", "auto_map")


def check_foreign_model(directory: Path) -> None:
    """ModelError for a directory that would have transformers open anything but its own files, or a pickle of them."""
    for name in ARGUMENTS:
        for key, value in _read(directory, name).items():
            if value and (NAMES_A_FILE.fullmatch(key) or (not _may_be_text(key) and any(_texts(value)))):
                raise ModelError(
                    f"model {directory}: {name} has {key!r:.60}, with which a file of this machine could be read; "
                    "remove it"
                )
    config = _read(directory, "config.json")
    for text in _texts({key: value for key, value in config.items() if key not in NOT_OPENED}):
        if PATH.fullmatch(text):
            raise ModelError(
                f"model {directory}: config.json has {text!r:.80}, which reads as the name of a file; remove it"
            )
    if config.get("configuration_files"):
        raise ModelError(f"model {directory}: config.json names other configs, which would be read as it; remove them")
    named = [config.get("transformers_weights")]
    for index in sorted(directory.rglob("*.index.json")):
        shards = _read(directory, str(index.relative_to(directory))).get("weight_map")
        named += list(shards.values()) if isinstance(shards, dict) else []
    for weights in named:
        if weights is not None and not _is_safe(weights):
            raise ModelError(
                f"model {directory}: its weights are said to be in {weights!r:.80}; they must be *.safetensors beside "
                "config.json"
            )
    if (directory / "adapter_config.json").exists():
        raise ModelError(f"model {directory}: adapter_config.json names another model; merge the adapter and save that")


def _is_safe(weights: object) -> bool:
    return (
        isinstance(weights, str)
        and "/" not in weights
        and weights.endswith((".safetensors", ".safetensors.index.json"))
    )


def _may_be_text(key: str) -> bool:
    return key in TEXT or key.endswith("_token")


def _read(directory: Path, name: str) -> dict[str, Any]:
    try:
        found = parse_json((directory / name).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"model {directory}: {name} is not valid JSON ({type(error).__name__}); save it again"
        ) from None
    if not isinstance(found, dict):
        raise ModelError(f"model {directory}: {name} is not a JSON object; save it again")
    return found


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, however deep, but for where nothing is opened."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOT_OPENED:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
