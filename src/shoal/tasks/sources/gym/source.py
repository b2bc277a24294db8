"""reasoning-gym as a task source: seeded generators whose answers are checked by code, offline."""

import dataclasses
import random
from functools import lru_cache
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.prompts import first_in, posed
from shoal.tasks.rewards.extract import Place, final_answer
from shoal.tasks.source import Split, Task
from shoal.tasks.sources.gym.determinism import count_of, steady
from shoal.tasks.sources.gym.package import import_gym
from shoal.tasks.sources.gym.safe_answers import foreign_option, in_form
from shoal.tasks.sources.gym.strict_scorers import may_be_right


class ReasoningGym:
    """One generator of reasoning-gym, with its own options.

    `binary` turns partial credit into 0: it is hackable. `answer` says where the answer stands: the whole completion,
    between tags or in a box that the prompt asks for. `template` is the prompt around the generator's own text.
    `difficulty` is a level of the generator's curriculum, which `options` may change further.
    """

    def __init__(
        self,
        generator: str,
        options: dict[str, Any],
        *,
        name: str | None = None,
        binary: bool = True,
        answer: Place = "whole",
        template: str = "{question}",
        difficulty: int | None = None,
    ) -> None:
        self.name = name or generator
        self._generator = generator
        self._binary = binary
        self._place: Place = answer
        self._template = template
        gym = import_gym()
        known = gym.factory.DATASETS
        if generator not in known:
            raise TaskError(
                f"task source reasoning-gym/{generator}: no such generator; known: {', '.join(sorted(known))}"
            )
        if generator == "composite":
            raise TaskError(
                "task source reasoning-gym/composite: not a generator, and would hide whose scorer sees an answer; "
                "write one [[tasks]] table for each of its generators, with their weights"
            )
        own = {
            option: value for option, value in options.items() if not _is_default(known[generator][1], option, value)
        }
        if (refused := foreign_option(generator, own)) is not None:
            raise TaskError(f"task source reasoning-gym/{generator}: {refused}")
        try:
            options = _at_level(generator, difficulty) | options
            dataset = gym.create_dataset(generator, size=count_of(generator), seed=0, **options)
        except (AssertionError, TypeError, ValueError) as error:
            raise TaskError(f"task source reasoning-gym/{generator}: options {options} refused: {error}") from error
        self._dataset = steady(generator, dataset)
        self._entry = lru_cache(maxsize=4096)(self._find)

    def task(self, split: Split, index: int) -> Task:
        return posed(self.name, index, self._entry(split, index), self._place, self._template)

    def _find(self, split: Split, index: int) -> dict[str, Any]:
        return first_in(split, self.name, index, self._make, "widen its options")

    def _make(self, number: int) -> dict[str, Any]:
        number %= count_of(self._generator)
        random.seed(number)  # some generators draw from Python's own generator beside theirs
        try:
            entry: dict[str, Any] = self._dataset[number]
        except Exception as error:  # a generator is foreign code; some options leave it nothing to choose from
            raise TaskError(f"task source {self.name}: its generator raised {error!r}; change its options") from error
        return entry

    def score(self, task: Task, answer: str) -> float:
        """The generator's own score. An answer that is not in the form it expects earns 0."""
        final = final_answer(answer, self._place)
        if final is None or not in_form(self._generator, final):
            return 0.0
        try:
            value = float(self._dataset.score_answer(final, task.entry))
        except MemoryError:
            raise
        except Exception:  # scorers raise what they please on an answer that they cannot parse
            if (known := task.entry["answer"]) is not None:
                self._dataset.score_answer(str(known), task.entry)  # if this raises too, the scorer is at fault
            return 0.0
        if value >= 1.0 and not may_be_right(self._generator, final, task.entry):
            return 0.0
        return float(value >= 1.0) if self._binary else value


def _at_level(generator: str, difficulty: int | None) -> dict[str, Any]:
    """The options that a level of the generator's curriculum stands for; past its last one, that one's."""
    if difficulty is None:
        return {}
    from reasoning_gym.factory import create_curriculum, has_curriculum

    if not has_curriculum(generator):
        raise TaskError(f"task source reasoning-gym/{generator}: has no curriculum; set options instead of difficulty")
    curriculum = create_curriculum(generator)
    curriculum.set_global_level(difficulty)
    fields = dataclasses.asdict(curriculum.generate_configuration())
    return {name: value for name, value in fields.items() if name not in ("seed", "size")}


def _is_default(config: Any, option: str, value: Any) -> bool:
    """Whether an option is what the generator has it at anyway."""
    return any(field.name == option and field.default == value for field in dataclasses.fields(config))
