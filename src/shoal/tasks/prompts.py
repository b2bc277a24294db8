"""From a source's entry to the prompt, the same for generators, tables and user code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.rewards.extract import ASK_FOR, THINK, THOUGHT, Place, shown
from shoal.tasks.source import Score, Split, Task, TaskSource, draw, leaves_of, size_of, split_of

# A source whose every text falls into one split would be asked for ever; real ones need 10 tries on average.
TRIES = 1000


def posed(name: str, index: int, entry: Mapping[str, Any], place: Place, template: str) -> Task:
    """The task of an entry with a question and perhaps an answer; the prompt says where the answer is to stand."""
    question = str(entry["question"]) + ASK_FOR[place]
    known = entry.get("answer")
    answer = None if known is None else shown(str(known), place)
    return Task(name, index, template.replace("{question}", question), answer, entry, str(entry.get("system", "")))


@dataclass(slots=True)
class Framed:
    """A source whose prompts have a system turn before them and the beginning of the answer behind them.

    A system turn of the task's own gives way to one that the config names.
    """

    name: str
    source: TaskSource
    system: str
    prefill: str

    @property
    def leaves(self) -> tuple[str, ...]:
        return leaves_of(self.source)

    @property
    def train_size(self) -> int | None:
        return size_of(self.source, "train")

    @property
    def heldout_size(self) -> int | None:
        return size_of(self.source, "heldout")

    def task(self, split: Split, index: int) -> Task:
        task = self.source.task(split, index)
        # A worked answer goes on where the prefill ends: one that begins in the thinking part has to close it.
        closing = f"{THOUGHT}\n" if THINK in self.prefill else ""
        answer = None if task.answer is None else closing + task.answer
        return replace(task, system=self.system or task.system, prefill=self.prefill, answer=answer)

    def score(self, task: Task, answer: str) -> float | Score:
        return self.source.score(task, answer)


def framed(source: TaskSource, system: str, prefill: str) -> TaskSource:
    """The source with these turns; as it is where there are none."""
    return Framed(source.name, source, system, prefill) if system or prefill else source


def first_in(split: Split, name: str, index: int, make: Callable[[int], dict[str, Any]], fix: str) -> dict[str, Any]:
    """The first entry that a source makes for an index whose text belongs to the split; `fix` ends the error."""
    for attempt in range(TRIES):
        entry = make(draw(name, split, index, attempt) >> 24)
        if split_of(str(entry["question"])) == split:
            return entry
    raise TaskError(f"task source {name}: {TRIES} draws for {split} task {index} gave none; {fix}")
