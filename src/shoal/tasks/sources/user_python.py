"""User code as a task source or a reward: a Python file with `task` and `score`.

A file with `task(index)`, which returns a dict with `question` and perhaps `answer`, and, unless the config names
another reward, `score(entry, answer)`. The config's `options` are further arguments of `task`. It is the user's own
code and runs as it is; what it scores may come from strangers.
"""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.files import held
from shoal.tasks.prompts import first_in, posed
from shoal.tasks.rewards.extract import Place
from shoal.tasks.source import Score, Split, Task

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Own:
    """The tasks of a Python file or module."""

    def __init__(
        self,
        where: Path | str,
        *,
        name: str,
        options: Mapping[str, Any] = NO_OPTIONS,
        place: Place = "whole",
        template: str = "{question}",
    ) -> None:
        module = load_module(str(where))
        self.name = name
        self.sha256 = _sha256(module)
        self._options = dict(options)
        self._place = place
        self._template = template
        self._task = _function(module, "task", str(where))
        self._score = getattr(module, "score", None)
        self._entry = lru_cache(maxsize=4096)(self._find)

    def task(self, split: Split, index: int) -> Task:
        return posed(self.name, index, self._entry(split, index), self._place, self._template)

    def _find(self, split: Split, index: int) -> dict[str, Any]:
        return first_in(split, self.name, index, self._make, "have it ask more questions")

    def _make(self, number: int) -> dict[str, Any]:
        try:
            entry = self._task(number, **self._options)
        except Exception as error:  # it is not ours
            raise TaskError(f"task source {self.name}: task({number}) raised {error!r}; fix it") from error
        if not isinstance(entry, dict) or "question" not in entry:
            raise TaskError(
                f"task source {self.name}: task({number}) returned {str(entry)[:80]!r}; "
                "it must be a dict with a question"
            )
        return entry

    def score(self, task: Task, answer: str) -> float | Score:
        if self._score is None:
            raise TaskError(f"{task.source}: has no score(entry, answer); add one, or set reward in the config")
        result: float | Score = self._score(dict(task.entry), answer)
        return result


def load_function(where: str, files: Mapping[str, str]) -> Callable[..., Any]:
    """The function that `file.py:name` or `module:name` names."""
    place, colon, name = where.rpartition(":")
    if not colon:
        raise TaskError(f"python/{where}: name a function, as in python/rewards.py:polite")
    return _function(load_module(str(held(place, files))), name, place)


@cache
def load_module(where: str) -> ModuleType:
    """A module by the path of its file, or by its name."""
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise TaskError(f"python/{where}: cannot be imported ({error}); give a module or a .py file") from error
    path = Path(where)
    if not path.is_file():
        raise TaskError(f"python/{where}: no such file, seen from {Path.cwd()}")
    spec = importlib.util.spec_from_file_location(f"shoal_own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TaskError(f"python/{where}: raised {type(error).__name__} when it was loaded: {error}") from error
    return module


def _function(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise TaskError(f"python/{where}: has no function {name}; define it, or name another")
    function: Callable[..., Any] = found
    return function


def _sha256(module: ModuleType) -> str:
    return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest() if module.__file__ else ""
