"""From a source's entry to the prompt, the same for generators, tables and user code."""

from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.rewards.extract import ASK_FOR, Place, shown
from shoal.tasks.source import Split, Task, draw, split_of

# A source whose every text falls into one split would be asked for ever; real ones need 10 tries on average.
TRIES = 1000


def posed(name: str, index: int, entry: Mapping[str, Any], place: Place, template: str) -> Task:
    """The task of an entry with a question and perhaps an answer; the prompt says where the answer is to stand."""
    question = str(entry["question"]) + ASK_FOR[place]
    known = entry.get("answer")
    answer = None if known is None else shown(str(known), place)
    return Task(name, index, template.replace("{question}", question), answer, entry)


def first_in(split: Split, name: str, index: int, make: Callable[[int], dict[str, Any]], fix: str) -> dict[str, Any]:
    """The first entry that a source makes for an index whose text belongs to the split; `fix` ends the error."""
    for attempt in range(TRIES):
        entry = make(draw(name, split, index, attempt) >> 24)
        if split_of(str(entry["question"])) == split:
            return entry
    raise TaskError(f"task source {name}: {TRIES} draws for {split} task {index} gave none; {fix}")
