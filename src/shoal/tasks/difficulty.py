"""Curriculum: tasks drawn by difficulty, in integers, so that any machine can repeat the draw.

Tasks fall into bins. The trainer counts how often the answers to each are right, and makes a table of weights of that:
highest for what is solved sometimes, and never nothing. The table is of integers and drawn from with integers alone, so
a lease and its table give the same tasks on every machine.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.config import SamplerConfig
from shoal.crypto.signed import canonical
from shoal.errors import TaskError, first_line
from shoal.files import parse_json
from shoal.tasks.source import Task, TaskSource, draw, members_of, part_of, size_of

# All bins of a run together: a table goes over the network with every version.
MAX_BINS = 4096
MAX_WEIGHT = 1000
MAX_SHARE = 10**6
MAX_BYTES = 48 << 10
# Before anything is known of a source it is taken to be solved half of the time, which is worth a look.
UNKNOWN = 0.5

Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]


class Part(BaseModel):
    """One source in a table: how often it is asked, and its bins' weights among each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=1000, description="Of the source.")
    share: int = Field(ge=1, le=MAX_SHARE, description="Weight of the source among the others.")
    weights: tuple[Weight, ...] = Field(
        strict=False, min_length=1, max_length=MAX_BINS, description="Weight of each of its bins."
    )


class Table(BaseModel):
    """What the tasks of a lease are drawn by."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    parts: tuple[Part, ...] = Field(strict=False, min_length=1, max_length=MAX_BINS, description="One a source.")

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        bins = sum(len(part.weights) for part in self.parts)
        if bins > MAX_BINS:
            raise ValueError(f"{bins} bins, a table has at most {MAX_BINS}")
        if len({part.name for part in self.parts}) != len(self.parts):
            raise ValueError("two sources of one name")
        if (size := len(self.to_json())) > MAX_BYTES:
            raise ValueError(f"{size} bytes of JSON, a table has at most {MAX_BYTES}; give sources shorter names")
        return self

    def to_json(self) -> str:
        """The one form that a table is signed and compared in."""
        return canonical(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A table out of its JSON; anything else is a TaskError."""
        try:
            return cls.model_validate(parse_json(text))
        except (ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else first_line(error)
            raise TaskError(f"not a table of weights: {text[:80]!r} ({reason})") from None


@dataclass(frozen=True, slots=True)
class Bins:
    """How a source's tasks fall into bins: task i is in bin i mod count, and all are in one where there is no end."""

    source: TaskSource
    share: float
    size: int | None
    count: int

    def of(self, index: int) -> int:
        return 0 if self.size is None else index % self.size % self.count

    def index(self, number: int, point: int) -> int:
        """The task of a bin that a point stands for."""
        if self.size is None:
            return point
        inside = (self.size - number + self.count - 1) // self.count
        return number + self.count * (point % inside)


def bins_of(tasks: TaskSource) -> dict[str, Bins]:
    """The bins of every source, which have room for all of them in one table."""
    members = members_of(tasks)
    room = MAX_BINS // len(members)
    if not room:
        raise TaskError(f"tasks: {len(members)} sources, a difficulty sampler weighs at most {MAX_BINS}; merge some")
    found = {}
    for name, (source, share) in members.items():
        size = size_of(source, "train")
        if size == 0:
            raise TaskError(f"task source {name}: has no train tasks to draw from; add some, or leave it out")
        found[name] = Bins(source, share, size, 1 if size is None else min(size, room))
    return found


def check_fits(tasks: TaskSource, table: Table) -> None:
    """A TaskError unless the table is one of these tasks."""
    ours = {name: bins.count for name, bins in bins_of(tasks).items()}
    theirs = {part.name: len(part.weights) for part in table.parts}
    if ours != theirs:
        name = next(name for name in ours | theirs if ours.get(name) != theirs.get(name))
        raise TaskError(
            f"table of weights: has {theirs.get(name, 'no')} bins for the source {name!r:.80}, and there are "
            f"{ours.get(name, 'none')} here; are these the tasks that the run was made with?"
        )


def pick(tasks: TaskSource, table: Table, seed: int, group: int, point: int) -> Task:
    """The task that a group of a lease draws: a source, one of its bins, and a task in it by `point`."""
    check_fits(tasks, table)
    part = table.parts[_drawn([part.share for part in table.parts], "source", seed, group)]
    bins = bins_of(tasks)[part.name]
    number = _drawn(part.weights, "bin", seed, group)
    return bins.source.task("train", bins.index(number, point))


def _drawn(weights: Sequence[int], *seed: object) -> int:
    """A place in a list, each with the chance that its weight gives it."""
    bounds = list(accumulate(weights))
    return bisect_right(bounds, draw(*seed) * bounds[-1] >> 64)


@dataclass(frozen=True, slots=True)
class Counts:
    """Answers to each bin of a source, and how many of them were right; older ones count less."""

    seen: tuple[float, ...]
    solved: tuple[float, ...]


Rates = Mapping[str, Counts]


def rates_to_tree(rates: Rates) -> dict[str, Any]:
    return {name: [list(counts.seen), list(counts.solved)] for name, counts in rates.items()}


def rates_from_tree(tree: Mapping[str, Any]) -> Rates:
    return {
        str(name): Counts(tuple(map(float, seen)), tuple(map(float, solved))) for name, (seen, solved) in tree.items()
    }


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, as the sampler sees it."""

    source: str
    task: int
    solved: bool


class Sampler:
    """Makes tables: pass rates that forget, and weights out of them."""

    def __init__(self, tasks: TaskSource, config: SamplerConfig) -> None:
        self._tasks = tasks
        self._config = config
        self._bins = bins_of(tasks)

    def start(self) -> Rates:
        """What is known before anything was asked."""
        return {name: Counts((0.0,) * bins.count, (0.0,) * bins.count) for name, bins in self._bins.items()}

    def after(self, rates: Rates, answers: Iterable[Answered]) -> Rates:
        """What is known after a step: what was known before counts for less."""
        memory = self._config.memory
        seen = {name: [n * memory for n in counts.seen] for name, counts in rates.items()}
        solved = {name: [n * memory for n in counts.solved] for name, counts in rates.items()}
        for answer in answers:
            name = part_of(self._tasks, answer.source).name
            number = self._bins[name].of(answer.task)
            seen[name][number] += 1.0
            solved[name][number] += answer.solved
        return {name: Counts(tuple(seen[name]), tuple(solved[name])) for name in rates}

    def table(self, rates: Rates) -> Table:
        """The weights of every bin. A source with many that are solved sometimes is asked more often than others."""
        weights = {name: [self._weight(rate) for rate in self._smooth(counts)] for name, counts in rates.items()}
        shares = {name: self._bins[name].share * _mean(weights[name]) / MAX_WEIGHT for name in rates}
        return Table(
            parts=tuple(
                Part(name=name, share=max(1, round(MAX_SHARE * shares[name])), weights=tuple(weights[name]))
                for name in rates
            )
        )

    def report(self, rates: Rates) -> dict[str, dict[str, float]]:
        """For people: each source's smoothed pass rate, its bins' mean weight, and its share of the tasks drawn."""
        table = self.table(rates)
        total = sum(part.share for part in table.parts)
        return {
            part.name: {
                "rate": self._rate(rates[part.name]),
                "weight": _mean(part.weights) / MAX_WEIGHT,
                "share": part.share / total,
            }
            for part in table.parts
        }

    def _rate(self, counts: Counts) -> float:
        """The source's own, before any of its bins is looked at."""
        some = self._config.smoothing
        return (sum(counts.solved) + some * UNKNOWN) / (sum(counts.seen) + some)

    def _smooth(self, counts: Counts) -> list[float]:
        """The rate of each bin; one that was hardly asked is taken to be like its source."""
        some, rate = self._config.smoothing, self._rate(counts)
        pairs = zip(counts.solved, counts.seen, strict=True)
        return [(solved + some * rate) / (seen + some) for solved, seen in pairs]

    def _weight(self, rate: float) -> int:
        """Highest at one half, where answers differ most."""
        floor = self._config.floor
        return max(1, round(MAX_WEIGHT * (floor + (1 - floor) * 4 * rate * (1 - rate))))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
