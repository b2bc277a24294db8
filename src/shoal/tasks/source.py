"""Tasks as pure functions: task i of a source follows from the source's spec and i, on every machine.

Train and held-out tasks never meet: the split is decided by a hash of the task's own text, so two indices that happen
to give the same question give it to the same split.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from shoal.errors import TaskError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shoal.tasks.environments.environment import Played

Split = Literal["train", "heldout"]
# One text in ten is held out: the first two bytes of its SHA-256, read as a number, are below this.
HELDOUT_BELOW = 65536 // 10
# Characters that the parts of a reward may take in a rollout file, which task and length are added to.
MAX_PARTS, ROOM_FOR_NUMBER = 900, 28
# Parts that length budgets add to a reward.
OWN_PARTS = TASK_PART, LENGTH_PART = "task", "length"
MAX_ERROR = 500


@dataclass(frozen=True, slots=True)
class Task:
    """One question, and what its source needs to score an answer to it."""

    source: str
    index: int
    prompt: str
    answer: str | None
    """A right answer, where the source knows one: shown to a model that is warm-started, never to the policy."""
    entry: Mapping[str, Any]
    system: str = ""
    """What a system turn before the prompt says; empty for none."""
    prefill: str = ""
    """How the answer begins, as the prompt's last tokens: the policy goes on from there."""


class TaskSource(Protocol):
    """Where tasks come from and how answers to them are scored.

    It may have `leaves`, `train_size`, `heldout_size` and `sha256`: `leaves_of`, `size_of` and `content_of` say what it
    means if it has not.
    """

    name: str

    def task(self, split: Split, index: int) -> Task: ...

    def score(self, task: Task, answer: str) -> "float | Score":
        """The reward of an answer. It may raise: the sample then has an error instead of a reward."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, or the reason why there is none."""

    reward: float | None
    error: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of, where it is made of several things."""
    doubtful: bool = False
    """Whether a faster or slower machine might have come to another reward: nobody is blamed for having done so."""


def score(source: TaskSource, task: Task, answer: str) -> Score:
    """Scores an answer; a scorer that fails is that sample's named error and never a reward."""
    try:
        return score_in_memory(source, task, answer)
    except MemoryError as error:
        return Score(None, scorer_error(task, error))


def scorer_error(task: Task, error: BaseException, who: str = "scorer") -> str:
    """What a scorer raised on an answer to the task."""
    return _printable(f"{task.source} task {task.index}: {who} raised {type(error).__name__}: {error}")


def _printable(text: str) -> str:
    """A message that is short enough for a file, without surrogates, which no file takes."""
    return text[:MAX_ERROR].encode(errors="replace").decode()


def score_in_memory(source: TaskSource, task: Task, answer: str) -> Score:
    """The same; but a MemoryError, which may be due to the answers before this one, is raised."""
    try:
        found = source.score(task, answer)
        return score_of(task, found)
    except MemoryError:
        raise
    except Exception as error:  # a scorer is foreign code and may raise anything
        return Score(None, scorer_error(task, error))


def score_of(task: Task, found: "float | Score") -> Score:
    """What a scorer returned, held to what a score may be: files with anything else are refused.

    A part that has a name of our own gets an underscore behind it.
    """
    result = found if isinstance(found, Score) else Score(float(found))
    if result.reward is None:
        return Score(None, _printable(result.error or f"{task.source} task {task.index}: scorer gave no reward"))
    # Numbers of libraries are not float, and would not be told to another process.
    parts = {f"{name}_" if name in OWN_PARTS else str(name): float(value) for name, value in result.parts.items()}
    reward = float(result.reward)
    result = Score(reward, "", parts, bool(result.doubtful))
    for value in (reward, *parts.values()):
        if not -1e6 < value < 1e6:
            return Score(None, f"{task.source} task {task.index}: scorer returned {value}, not a finite number")
    if sum(len(json.dumps(name)) + ROOM_FOR_NUMBER for name in result.parts) > MAX_PARTS:
        names = ", ".join(result.parts)
        return Score(None, f"{task.source} task {task.index}: too many parts, or too long names: {names}"[:MAX_ERROR])
    return result


TokenCount = tuple[int, int]
"""Tokens of all that came before a turn, the prompt included, and of the turn itself."""


class How(TypedDict, total=False):
    """How an episode is played."""

    known: int
    """Actions whose observations were given before; 0 if left out."""
    score: bool
    """Whether the episode ends with these actions and is scored. One that is over is scored in any case."""
    episode: int
    """A name for one that goes on: a host may keep its state until it is scored."""
    tokens: Sequence[TokenCount]
    """Of each action, for environments that tell of them; none if left out."""


class Host(Protocol):
    """Where episodes are played: in another process, or in this one."""

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Unpack[How]) -> "Future[Played]":
        """Plays a task's actions and gives the observations after those that are known.

        All actions are given each time, so that a host that was lost is replaced without anyone noticing.
        """
        ...


class Judge(Host, Protocol):
    """Who scores answers, several at once, and plays episodes."""

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        """A reward or a named error for each, in order; what is not scored after so many seconds is an error."""
        ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """Scores in this process, without a deadline: for answers and scorers that are trusted."""

    source: TaskSource

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        del split, seconds
        return [score(self.source, task, answer) for task, answer in answers]

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Unpack[How]) -> "Future[Played]":
        from shoal.tasks.environments.source import LocalHost

        return LocalHost(self.source).play(split, task, actions, **how)


def split_of(text: str) -> Split:
    """The split a task's text belongs to."""
    digest = hashlib.sha256(text.encode()).digest()
    return "heldout" if int.from_bytes(digest[:2], "big") < HELDOUT_BELOW else "train"


def draw(*parts: object) -> int:
    """A 64-bit number that follows from its parts alone, the same on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Mixture:
    """Several sources as one: index i is drawn to one of them by weight."""

    def __init__(self, sources: Sequence[TaskSource], weights: Sequence[float]) -> None:
        if len({source.name for source in sources}) != len(sources):
            raise TaskError(f"tasks {[source.name for source in sources]}: names must differ; set name on one of them")
        self.name = "+".join(source.name for source in sources)
        self._sources = {source.name: source for source in sources}
        # A task belongs to the source that it names, which is a member's name where the source is a mixture.
        self._owners = {leaf: source for source in sources for leaf in leaves_of(source)}
        self._bounds = [bound / sum(weights) for bound in accumulate(weights)]
        self._shares = [weight / sum(weights) for weight in weights]

    def task(self, split: Split, index: int) -> Task:
        point = draw("mixture", index) / 2**64
        names = list(self._sources)
        chosen = next((n for n, bound in zip(names, self._bounds, strict=True) if point < bound), names[-1])
        return self._sources[chosen].task(split, index)

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(self._owners)

    @property
    def members(self) -> dict[str, tuple[TaskSource, float]]:
        """Each source, and its share of the tasks."""
        pairs = zip(self._sources.items(), self._shares, strict=True)
        return {name: (source, share) for (name, source), share in pairs}

    def owner(self, name: str) -> TaskSource:
        """The source whose tasks have that name."""
        return self._owners[name]

    def score(self, task: Task, answer: str) -> float | Score:
        return self._owners[task.source].score(task, answer)


def leaves_of(source: TaskSource) -> tuple[str, ...]:
    """The names of a source's tasks."""
    found: tuple[str, ...] = getattr(source, "leaves", (source.name,))
    return found


def size_of(source: TaskSource, split: Split) -> int | None:
    """Tasks of a split, after which they come again; None for a source without end."""
    found: int | None = getattr(source, f"{split}_size", None)
    return found


def content_of(source: TaskSource) -> str | None:
    """Hash of what a source holds; None for one whose tasks follow from its config alone."""
    found: str | None = getattr(source, "sha256", None)
    return found


def members_of(source: TaskSource) -> dict[str, tuple[TaskSource, float]]:
    """The sources of a mixture with their shares, or the one source itself."""
    return source.members if isinstance(source, Mixture) else {source.name: (source, 1.0)}


def part_of(source: TaskSource, name: str) -> TaskSource:
    """The source that a task's name leads to: one of a mixture's, else the source itself."""
    return source.owner(name) if isinstance(source, Mixture) else source
