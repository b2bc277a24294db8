"""reasoning-gym as a task source: seeded generators whose answers are checked by code, offline."""

import re
from functools import lru_cache
from typing import Any, Literal

from shoal.errors import TaskError
from shoal.tasks.forms import foreign_option, in_form
from shoal.tasks.source import Split, Task, draw, split_of

# A generator whose every text falls into one split would loop for ever; real ones need 10 tries on average.
TRIES = 1000
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ASK_FOR_TAGS = "\nGive the final answer between <answer> and </answer>."


class ReasoningGym:
    """One generator of reasoning-gym, with its own options.

    `binary` turns partial credit into 0: it is hackable. `answer` says where the answer stands: the whole completion,
    or between tags that the prompt asks for. `template` is the prompt around the generator's own text.
    """

    def __init__(
        self,
        generator: str,
        options: dict[str, Any],
        *,
        name: str | None = None,
        binary: bool = True,
        answer: Literal["whole", "tagged"] = "whole",
        template: str = "{question}",
    ) -> None:
        import reasoning_gym

        self.name = name or generator
        self._generator = generator
        self._binary = binary
        self._tagged = answer == "tagged"
        self._template = template
        known = reasoning_gym.factory.DATASETS
        if generator not in known:
            raise TaskError(
                f"task source reasoning-gym/{generator}: no such generator; known: {', '.join(sorted(known))}"
            )
        if generator == "composite":
            raise TaskError(
                "task source reasoning-gym/composite: not taken, for it would hide whose scorer sees an answer; "
                "write one [[tasks]] table for each of its generators, with their weights"
            )
        if (foreign := foreign_option(generator, options)) is not None:
            raise TaskError(
                f"task source reasoning-gym/{generator}: option {foreign!r:.80} is refused, for this generator "
                "evaluates what it makes of its options; give letters, digits and operators"
            )
        try:
            self._dataset = reasoning_gym.create_dataset(generator, size=2**62, seed=0, **options)
        except (AssertionError, TypeError, ValueError) as error:
            raise TaskError(f"task source reasoning-gym/{generator}: options {options} refused: {error}") from error
        self._entry = lru_cache(maxsize=4096)(self._find)

    def task(self, split: Split, index: int) -> Task:
        entry = self._entry(split, index)
        question = str(entry["question"]) + (ASK_FOR_TAGS if self._tagged else "")
        prompt = self._template.replace("{question}", question)
        answer = str(entry["answer"])
        return Task(self.name, index, prompt, f"<answer>{answer}</answer>" if self._tagged else answer, entry)

    def _find(self, split: Split, index: int) -> dict[str, Any]:
        for attempt in range(TRIES):
            try:
                entry: dict[str, Any] = self._dataset[draw(self.name, split, index, attempt) >> 24]
            except Exception as error:  # a generator is foreign code; some options leave it nothing to choose from
                raise TaskError(
                    f"task source {self.name}: its generator raised {error!r}; change its options"
                ) from error
            if split_of(str(entry["question"])) == split:
                return entry
        raise TaskError(f"task source {self.name}: {TRIES} draws for {split} task {index} gave none; widen its options")

    def score(self, task: Task, answer: str) -> float:
        """The generator's own score. An answer that is not in the form it expects earns 0."""
        if self._tagged:
            tagged = TAGGED.findall(answer)
            if not tagged:
                return 0.0
            answer = tagged[-1]
        answer = answer.strip()
        if not in_form(self._generator, answer):
            return 0.0
        try:
            value = float(self._dataset.score_answer(answer, task.entry))
        except MemoryError:
            raise
        except Exception:  # scorers raise what they please on an answer that they cannot parse
            known = task.entry["answer"]
            if known is not None:
                self._dataset.score_answer(
                    str(known), task.entry
                )  # which must work; otherwise it is the scorer's fault
            return 0.0
        return float(value >= 1.0) if self._binary else value
