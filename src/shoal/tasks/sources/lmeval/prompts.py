"""Rows as prompts and targets: the harness's own, letter for letter, few-shot examples included.

Templates are rendered in a sandbox.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from random import Random

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shoal.errors import TaskError
from shoal.tasks.sources.lmeval.docs import Doc, Docs
from shoal.tasks.sources.lmeval.recipe import Recipe

# What the harness draws few-shot examples with unless it is told otherwise.
FEWSHOT_SEED = 1234


def prompts(recipe: Recipe, docs: Docs, split: str, where: str) -> Iterator[tuple[str, list[str]]]:
    """The prompt and the targets of every row, in order: few-shot examples are drawn one row after the other."""
    writer = _Writer(recipe, where)
    shown, pool = _examples(recipe, docs, where)
    drawn = Random(FEWSHOT_SEED)
    for doc in _split(docs, split, where):
        own = doc if shown == split else None
        examples = _choose(recipe, pool, own, drawn, where)
        yield writer.prompt(doc, examples), writer.targets(doc, recipe.doc_to_target)


def _split(docs: Docs, split: str, where: str) -> Sequence[Doc]:
    if split not in docs:
        raise TaskError(f"{where}: its data have no split {split!r}; they have {', '.join(docs)}")
    return docs[split]


def _examples(recipe: Recipe, docs: Docs, where: str) -> tuple[str | None, Sequence[Doc]]:
    """Whence examples are drawn: the split's name, if it is one, and its rows."""
    shots, own = recipe.num_fewshot or 0, recipe.fewshot_config
    split = own.split or recipe.fewshot_split
    if not shots:
        return None, []
    if split is None and own.samples is not None:
        return None, own.samples
    split = split or recipe.training_split or recipe.validation_split or str(recipe.test_split)
    return split, _split(docs, split, where)


def _choose(recipe: Recipe, pool: Sequence[Doc], own: Doc | None, drawn: Random, where: str) -> Sequence[Doc]:
    shots = recipe.num_fewshot or 0
    others = pool if own is None else [doc for doc in pool if doc != own]
    if len(others) < shots:
        raise TaskError(f"{where}: num_fewshot = {shots}, and there are {len(others)} examples to draw from")
    if recipe.fewshot_config.sampler == "first_n" or not shots:
        return others[:shots]
    if own is None:
        return drawn.sample(list(pool), shots)
    # One more than needed, in case that the row itself is among them.
    found = [doc for doc in drawn.sample(list(pool), min(shots + 1, len(pool))) if doc != own][:shots]
    return found if len(found) == shots else drawn.sample(others, shots)


class _Writer:
    """Rows as text."""

    def __init__(self, recipe: Recipe, where: str) -> None:
        self._recipe = recipe
        self._where = where
        self._jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        self._jinja.filters["regex_replace"] = _regex_replace

    def prompt(self, doc: Doc, examples: Sequence[Doc]) -> str:
        recipe = self._recipe
        text = self._field(recipe.description, doc) + "".join(map(self._example, examples))
        question, prefix = self._field(recipe.doc_to_text, doc), self._field(recipe.gen_prefix or "", doc)
        return text + _joined(question, prefix, recipe.target_delimiter)

    def targets(self, doc: Doc, field: str | list[str] | int) -> list[str]:
        """The right answers: one, or any of several where a column or a template holds a list."""
        if isinstance(field, list):
            return field
        found = doc[str(field)] if field in doc else self._field(str(field), doc)
        if isinstance(found, str) and field not in doc and found.startswith("[") and found.endswith("]"):
            try:
                found = ast.literal_eval(found)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return [str(found)]
        return [str(one) for one in found] if isinstance(found, list) else [str(found)]

    def _example(self, doc: Doc) -> str:
        recipe, own = self._recipe, self._recipe.fewshot_config
        question = self._field(own.doc_to_text or recipe.doc_to_text, doc)
        prefix = self._field(recipe.gen_prefix or "", doc)
        target = self.targets(doc, own.doc_to_target or recipe.doc_to_target)[0]
        delimiter = recipe.target_delimiter if own.target_delimiter is None else own.target_delimiter
        end = recipe.fewshot_delimiter if own.fewshot_delimiter is None else own.fewshot_delimiter
        if not prefix:
            return question + delimiter + target + end
        return _joined(question, _joined(prefix, target, " "), delimiter) + end

    def _field(self, field: str, doc: Doc) -> str:
        """A column, or a template over the columns."""
        if field in doc:
            return str(doc[field])
        try:
            return self._jinja.from_string(field).render(**doc)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise TaskError(
                f"{self._where}: template {field[:80]!r} fails: {error}; columns are {', '.join(map(str, doc))}"
            ) from error


def _regex_replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    return re.sub(pattern, replacement, text, count=count)


def _joined(first: str, second: str, delimiter: str) -> str:
    """Both, with the delimiter between them unless there is a space already, or nothing to keep apart."""
    if not first or not second:
        return first + second
    return first + second if first[-1].isspace() or second[0].isspace() else first + delimiter + second
