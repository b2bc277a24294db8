"""A filtered source: the tasks of another source that `shoal filter` kept.

A file names the source, the model that was asked, and each task's rate. Held-out tasks stay as they are, so that runs
on filtered and on unfiltered tasks are measured by the same ones.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.files import parse_json
from shoal.tasks.files import held
from shoal.tasks.source import Score, Split, Task, TaskSource, leaves_of, size_of

FORMAT = "shoal filter 1"
# A filtered file names others by their hash, which may name others: what unfolds without end is nobody's tasks.
MAX_LINES = 1024
MAX_DEPTH = 8
MAX_HEADER = 1 << 20
Verdict = Literal["kept", "too hard", "too easy", "duplicate", "failed"]


@dataclass(frozen=True, slots=True)
class Rated:
    """One task as the filter found it."""

    index: int
    verdict: Verdict
    solved: int
    samples: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Header:
    """What was asked of whom, and what was to be kept."""

    tasks: list[TaskConfig]
    model: str
    samples: int
    keep: tuple[float, float]
    temperature: float
    seed: int

    def to_json(self) -> str:
        fields = {
            "format": FORMAT,
            "tasks": [task.model_dump(mode="json", exclude_defaults=True) for task in self.tasks],
            "model": self.model,
            "samples": self.samples,
            "keep": list(self.keep),
            "temperature": self.temperature,
            "seed": self.seed,
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        head: dict[str, Any] = parse_json(text)
        if head["format"] != FORMAT:
            raise KeyError(head["format"])
        return cls(
            [TaskConfig.model_validate(task) for task in head["tasks"]],
            str(head["model"]),
            int(head["samples"]),
            (float(head["keep"][0]), float(head["keep"][1])),
            float(head["temperature"]),
            int(head["seed"]),
        )


def read_header(path: Path) -> Header:
    """What a file that `shoal filter` wrote says of itself."""
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_HEADER)
    except OSError as error:
        raise TaskError(
            f"task source filtered/{path}: cannot be read ({error.strerror}); shoal filter writes it"
        ) from error
    try:
        return Header.from_json(line)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise TaskError(
            f"task source filtered/{path}: not a file of shoal filter ({error!r}); run shoal filter again"
        ) from error


def read_filtered(path: Path) -> tuple[Header, list[Rated]]:
    """A file that `shoal filter` wrote, or was writing when it was stopped: a torn last line is left out."""
    header = read_header(path)
    lines = path.read_text("utf-8").splitlines()
    rated = []
    for number, line in enumerate(lines[1:], 2):
        try:
            rated.append(Rated(**parse_json(line)))
        except (ValueError, TypeError, RecursionError):
            if number < len(lines):
                raise TaskError(
                    f"task source filtered/{path}: line {number} is damaged; run shoal filter again"
                ) from None
    return header, rated


def unfolded(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """The same lines, with those that a filtered file names in its place: whose scorers are behind them."""
    return [line for task in tasks for line in (unfolded(behind(task)) or [task])]


def behind(task: TaskConfig) -> list[TaskConfig]:
    """The lines that a filtered file stands for; of any other line there are none."""
    kind, _, rest = task.source.partition("/")
    return read_header(held(rest, task.files)).tasks if kind == "filtered" else []


def layers(tasks: Sequence[TaskConfig], whose: str) -> Iterator[list[TaskConfig]]:
    """The lines, then those behind them, and so on: each time before the files that they name are looked into."""
    lines, count = list(tasks), 0
    for _ in range(MAX_DEPTH):
        yield lines
        count += len(lines)
        found: list[TaskConfig] = []
        for task in lines:
            found += behind(task)
            if count + len(found) > MAX_LINES:
                raise TaskError(f"{whose}: its tasks stand for more than {MAX_LINES} sources; do not join it")
        if not found:
            return
        lines = found
    raise TaskError(f"{whose}: its tasks were filtered more than {MAX_DEPTH - 1} times; do not join it")


class Filtered:
    """The kept tasks of another source."""

    def __init__(self, path: Path, header: Header, source: TaskSource, rated: list[Rated]) -> None:
        self.name = source.name
        self._source = source
        self._kept = [one.index for one in rated if one.verdict == "kept"]
        spec = header.to_json() + json.dumps(self._kept)
        self.sha256 = hashlib.sha256(spec.encode()).hexdigest()
        if not self._kept:
            raise TaskError(f"task source filtered/{path}: none of its {len(rated)} tasks was kept; filter less")

    @property
    def leaves(self) -> tuple[str, ...]:
        return leaves_of(self._source)

    @property
    def train_size(self) -> int:
        return len(self._kept)

    @property
    def heldout_size(self) -> int | None:
        return size_of(self._source, "heldout")

    def task(self, split: Split, index: int) -> Task:
        if split == "heldout":
            return self._source.task(split, index)
        return replace(self._source.task(split, self._kept[index % len(self._kept)]), index=index)

    def score(self, task: Task, answer: str) -> float | Score:
        return self._source.score(task, answer)
