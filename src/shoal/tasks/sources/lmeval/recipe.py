"""What a YAML file of lm-evaluation-harness says: a generation task whose parts are templates, not code.

What is not supported is refused by name, for a score that is nearly the published one is worth nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import TaskError
from shoal.files import read_regular
from shoal.tasks.sources.lmeval.scoring import ExactMatch, Filters, Scoring

# The harness's own default.
MAX_NEW_TOKENS = 256
MAX_YAML = 1 << 20
MAX_INCLUDES = 16


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fewshot(_Section):
    """Where worked examples come from, and how they are written if otherwise than the question itself."""

    sampler: Literal["default", "first_n"] = "default"
    split: str | None = None
    samples: list[dict[str, Any]] | None = None
    doc_to_text: str | None = None
    doc_to_target: str | None = None
    fewshot_delimiter: str | None = None
    target_delimiter: str | None = None


class Generation(_Section):
    """How answers are drawn."""

    until: list[str] | str | None = None
    max_gen_toks: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)
    do_sample: bool | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    num_beams: Literal[1] | None = None


class Recipe(_Section):
    """What a YAML file may say. What does not change prompts or scores is read and left alone."""

    task: str
    dataset_path: str
    dataset_name: str | None = None
    dataset_kwargs: dict[str, Any] | None = None
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    output_type: Literal["generate_until"] = "generate_until"
    description: str = ""
    doc_to_text: str
    doc_to_target: str | list[str] | int
    gen_prefix: str | None = None
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    fewshot_config: Fewshot = Fewshot()
    num_fewshot: int | None = Field(None, ge=0)
    generation_kwargs: Generation = Generation()
    filter_list: list[Filters] | None = None
    metric_list: list[ExactMatch] | None = None
    repeats: int = Field(1, ge=1)
    unsafe_code: Literal[False] = False
    tag: Any = None
    group: Any = None
    task_alias: Any = None
    metadata: Any = None
    should_decontaminate: Any = None
    doc_to_decontamination_query: Any = None

    @property
    def scoring(self) -> Scoring:
        until = self.generation_kwargs.until
        stops = [self.fewshot_delimiter] if until is None else [until] if isinstance(until, str) else until
        metric = self.metric_list[0] if self.metric_list else ExactMatch()
        return Scoring(until=stops, filters=self.filter_list or [Filters()], metric=metric)

    @property
    def temperature(self) -> float:
        """0 unless the file asks for sampling."""
        said = self.generation_kwargs
        if said.do_sample is False or (said.do_sample is None and not said.temperature):
            return 0.0
        return 1.0 if said.temperature is None else said.temperature

    @property
    def max_new_tokens(self) -> int:
        said = self.generation_kwargs
        return said.max_gen_toks or said.max_new_tokens or MAX_NEW_TOKENS


def read_recipe(path: Path) -> Recipe:
    """The YAML file, with what it includes; a TaskError names whatever is not supported."""
    where = f"task source lm-eval/{path}"
    tree = _load(path, where, [])
    for key, code in _code_in(tree):
        raise TaskError(
            f"{where}: {key} is !function {code}, which is code and is not run; "
            "only templates, column names and texts are accepted"
        )
    if isinstance(tree.get("task"), list):
        raise TaskError(f"{where}: is a group of tasks; give the file of each")
    try:
        return Recipe.model_validate({key: value for key, value in tree.items() if value is not None})
    except ValidationError as error:
        raise TaskError(
            f"{where}: not supported:\n" + "\n".join(_fault(dict(item)) for item in error.errors())
        ) from None


def _fault(error: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    said = str(error["input"])[:80]
    if error["type"] == "missing":
        return f"  {key}: is missing"
    if error["type"] == "extra_forbidden":
        return f"  {key} = {said}: what it would do is not done here"
    if error["type"] == "union_tag_invalid":
        return f"  {key}: function {error['ctx']['tag']}; known: {error['ctx']['expected_tags']}"
    return f"  {key} = {said}: {error['msg']}"


class _Code:
    """What `!function` names."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Loader(yaml.SafeLoader):
    """YAML's plain values, and names of functions, which are not looked up."""


_Loader.add_constructor("!function", lambda _, node: _Code(str(node.value)))


def _load(path: Path, where: str, outer: Sequence[Path]) -> dict[str, Any]:
    if path.resolve() in outer or len(outer) > MAX_INCLUDES:
        raise TaskError(f"{where}: {path} includes itself")
    try:
        tree = yaml.load(read_regular(path, MAX_YAML), _Loader)
    except OSError as error:
        raise TaskError(f"{where}: {path} cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TaskError(
            f"{where}: {path} is not the YAML that is understood here: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(tree, dict):
        raise TaskError(f"{where}: {path} does not hold a table of settings")
    found = tree.pop("include", None) or []
    base: dict[str, Any] = {}
    for name in [found] if isinstance(found, str) else found:
        base |= _load(path.parent / str(name), where, [*outer, path.resolve()])
    return base | {str(key): value for key, value in tree.items()}


def _code_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, _Code):
        yield key, value.name
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield from _code_in(part, f"{key}.{name}" if key else str(name))
