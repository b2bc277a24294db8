"""The reference of all settings, generated from the config tree: `python -m shoal.config_docs > docs/config.md`."""

import json
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.config import RunConfig, TaskConfig

HEAD = """# Settings of a run

Every key of a config file with its type, default and meaning. This page is generated: `python -m shoal.config_docs >
docs/config.md`. An unknown key is refused, with the nearest known one. `shoal run CONFIG --dry-run` prints a config with
all defaults filled in; `--set train.lr=1e-5` overrides one key.
"""
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}
HUGE = 1 << 31  # a bound that only keeps numbers within their format is not worth a word


def config_page() -> str:
    """All of docs/config.md."""
    return "\n".join([HEAD, *_section(RunConfig, "")]).rstrip() + "\n"


def _section(model: type[BaseModel], prefix: str, heading: str = "Top level") -> Iterator[str]:
    """One table per model: its own keys first, then one section per table below it."""
    yield f"## {heading}\n"
    yield f"{_prose(model)}\n"
    below = {name: field for name, field in model.model_fields.items() if _model_in(field.annotation)}
    yield "| key | type | default | what it does |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name not in below:
            cells = (f"`{name}`", _type(field.annotation, field.metadata), _default(field), field.description or "")
            yield f"| {' | '.join(cell.replace('<', '&lt;').replace('|', '&#124;') for cell in cells)} |"
    yield ""
    for name, field in below.items():
        inner = _model_in(field.annotation)
        assert inner is not None
        is_list = typing.get_origin(field.annotation) is list
        path = f"{prefix}{name}"
        shown = f"`[[{path}]]`" if is_list else f"`[{path}]`"
        if inner is TaskConfig and prefix:
            yield f"## {shown}\n\n{field.description} The same keys as `[[tasks]]`.\n"
        else:
            yield from _section(inner, f"{path}.", shown)


def _prose(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The table that a key holds, or a list of which it holds; None for a plain value."""
    if typing.get_origin(annotation) is list:
        return _model_in(typing.get_args(annotation)[0])
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = [item for argument in arguments[1:] for item in getattr(argument, "metadata", [argument])]
        return _type(arguments[0], inner)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments if argument is not type(None))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "table"
    name = {"str": "text", "float": "number", "int": "integer", "bool": "boolean"}
    bounds = ", ".join(_bounds(metadata))
    return name.get(getattr(annotation, "__name__", ""), "value") + (f" ({bounds})" if bounds else "")


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for item in metadata:
        for name, words in BOUNDS.items():
            bound = getattr(item, name, None)
            if bound is not None and abs(bound) < HUGE:
                yield f"{words} {bound}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


if __name__ == "__main__":
    sys.stdout.write(config_page())
