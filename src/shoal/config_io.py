"""A run's config as a file: TOML and `--set` overrides in, a checked value out, and back to TOML.

Every error names the key, its value, the rule and, for a key that does not exist, the nearest one that does.
"""

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from pydantic import BaseModel, ValidationError

from shoal.config import IN_WORDS, RunConfig
from shoal.errors import ConfigError

# Not for strangers: databases with their passwords, which workers cheat, and where the owner looks at curves.
PRIVATE = {"swarm", "cheaters", "log"}


def public_tree(config: RunConfig) -> dict[str, Any]:
    """A config as strangers may see it."""
    return config.model_dump(mode="json", exclude_none=True, exclude=PRIVATE)


def load_config(path: Path, settings: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file, applies `a.b=c` settings over it and checks the whole."""
    path = _shipped(path)
    try:
        tree = tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a byte-order mark
    except OSError as error:
        raise ConfigError(f"config {path}: cannot be read ({error.strerror}); give the path of a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config {path}: not valid TOML: {error}") from error
    return check_config(override(tree, settings), str(path))


def _shipped(path: Path) -> Path:
    """The path itself, or for configs/NAME.toml where there is no such file the one that an installed package has."""
    own = Path(__file__).parent / "configs" / path.name
    return own if path.parent == Path("configs") and not path.exists() and own.is_file() else path


def check_config(tree: dict[str, Any], origin: str) -> RunConfig:
    """A RunConfig out of plain values, or a ConfigError that lists every fault."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        faults = "\n".join(f"  {_fault(dict(item))}" for item in error.errors())
        raise ConfigError(f"config {origin}:\n{faults}") from None


def override(tree: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The tree itself, with `a.b=c` settings applied."""
    for setting in settings:
        _apply(tree, setting)
    return tree


def _apply(tree: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting}: must read key=value, as in --set train.lr=1e-5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word stands for itself, so that --set model.source=tiny needs no quotes
    node: Any = tree
    *path, last = key.strip().split(".")
    for part in path:
        node = _item(node, part, setting) if isinstance(node, list) else node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {setting}: {part} is a value, not a table")
    if isinstance(node, list):
        _item(node, last, setting)
        node[int(last)] = value
    else:
        node[last] = value


def _item(items: list[Any], part: str, setting: str) -> Any:
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(f"--set {setting}: {part} must be an index from 0 to {len(items) - 1}")
    return items[int(part)]


def _fault(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        parent, _, key = where.rpartition(".")
        keys = _keys(error["loc"][:-1])
        close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        near = _elsewhere(key) or [f"{parent}.{name}" if parent else name for name in close]
        hint = f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(keys)}"
        return f"{where} = {error['input']!r}: unknown key; {hint}"
    if error["type"] == "missing":
        return f"{where}: is missing and has no default; add it"
    if error["type"] == "string_pattern_mismatch":
        return f"{where} = {error['input']!r}: {IN_WORDS[error['ctx']['pattern']]}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {message}" if where and "input" in error else message


def _keys(path: Sequence[str | int]) -> list[str]:
    """The keys known at a place in the tree."""
    node: Any = RunConfig
    for part in path:
        if isinstance(part, int):
            continue
        if not (isinstance(node, type) and issubclass(node, BaseModel)) or part not in node.model_fields:
            return []
        node = _inner(node.model_fields[part].annotation)
    return list(node.model_fields) if isinstance(node, type) and issubclass(node, BaseModel) else []


def _inner(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (list, Union, types.UnionType):
        return _inner(typing.get_args(annotation)[0])
    return annotation


def _elsewhere(key: str) -> list[str]:
    """Full names of a key or table that is right in another place: those nearest to the top."""
    parts = [name.split(".") for name, _ in describe()]
    places = sorted(dict.fromkeys(tuple(p[: p.index(key) + 1]) for p in parts if key in p), key=len)
    return [".".join(place) for place in places if len(place) == len(places[0])]


def describe(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[tuple[str, str]]:
    """Every key of the tree with its description."""
    rows: list[tuple[str, str]] = []
    for key, field in model.model_fields.items():
        inner = _inner(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += describe(inner, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", field.description or ""))
    return rows


def to_toml(config: RunConfig) -> str:
    """The resolved config as TOML that `load_config` reads back to the same value."""
    lines: list[str] = []
    _write_table(config.model_dump(mode="json", exclude_none=True), "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(table: dict[str, Any], prefix: str, lines: list[str]) -> None:
    subtables = {}
    for key, value in table.items():
        is_table = isinstance(value, dict) and key not in ("options", "columns", "files")
        is_array_of_tables = isinstance(value, list) and value and isinstance(value[0], dict)
        if is_table or is_array_of_tables:
            subtables[key] = value
        else:
            lines.append(f"{key} = {_toml(value)}")
    for key, value in subtables.items():
        name = f"{prefix}{key}"
        for item in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            _write_table(item, f"{name}.", lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON allows and TOML does not
