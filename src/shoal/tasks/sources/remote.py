"""Proxy for a task source in another process: its metadata, and nothing that makes tasks."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.source import Split, Task

Make = Callable[[int, Split, int], Task]


class Remote:
    """A source in another process, which also scores the answers to its tasks."""

    def __init__(
        self,
        name: str,
        leaves: tuple[str, ...],
        sha256: str | None,
        train_size: int | None,
        heldout_size: int | None,
        make: Callable[[Split, int], Task],
    ) -> None:
        self.name = name
        self.leaves = leaves
        self.sha256 = sha256
        self.train_size = train_size
        self.heldout_size = heldout_size
        self._make = lru_cache(maxsize=4096)(make)

    def task(self, split: Split, index: int) -> Task:
        return self._make(split, index)

    def score(self, task: Task, answer: str) -> float:
        del answer
        raise TaskError(f"{task.source}: made and scored in another process; ask its Scorer for scores")


def read_source(said: Any, number: int, make: Make) -> Remote:
    """A source as the other process describes it; ValueError for anything else."""
    match said:
        case {
            "name": str() as name,
            "leaves": [*leaves],
            "sha256": str() | None as sha256,
            "train": int() | None as train,
            "heldout": int() | None as heldout,
        } if leaves and all(isinstance(leaf, str) for leaf in leaves):
            return Remote(name, tuple(leaves), sha256, train, heldout, lambda split, index: make(number, split, index))
    raise ValueError


def read_task(said: Any, known: Callable[[str], bool]) -> Task:
    """A task as the other process made it, of a source that is known; ValueError for anything else."""
    match said:
        case [
            str() as source,
            int() as index,
            str() as prompt,
            str() | None as answer,
            str() as system,
            str() as prefill,
        ] if known(source):
            return Task(source, index, prompt, answer, {}, system, prefill)
    raise ValueError
