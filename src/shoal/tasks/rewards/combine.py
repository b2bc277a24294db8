"""Rewards by name, and several of them as one: a weighted sum whose parts are kept.

All but a user's own are binary, for partial credit can be had without solving anything.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.config import CodeConfig, RewardConfig, TaskConfig
from shoal.errors import TaskError
from shoal.tasks.isolation.sandbox import Bounds, find_bubblewrap
from shoal.tasks.rewards.code import Test, judge_program, read_tests
from shoal.tasks.rewards.extract import THINK, Place, after_thinking, final_answer, last_box, last_python
from shoal.tasks.rewards.math import load_parser, same
from shoal.tasks.source import Score, Split, Task, TaskSource, leaves_of, size_of
from shoal.tasks.sources.filtered import unfolded
from shoal.tasks.sources.released_rows import CODE, right_answers
from shoal.tasks.sources.user_python import load_function

Reward = Callable[[Task, str], float | Score]
OWN = "own"
ROW = "row"
LIVECODEBENCH = "livecodebench"
PYTHON_TOOL = "environment/python"
NAMES = (OWN, "exact", "contains", "math", "code", "format", ROW)


@dataclass(slots=True)
class Rewarded:
    """A source whose answers earn what the config says. What stands before the end of the thinking earns nothing."""

    name: str
    source: TaskSource
    rewards: Mapping[str, tuple[Reward, float]]
    thinking: bool

    @property
    def train_size(self) -> int | None:
        return size_of(self.source, "train")

    @property
    def leaves(self) -> tuple[str, ...]:
        return leaves_of(self.source)

    @property
    def heldout_size(self) -> int | None:
        return size_of(self.source, "heldout")

    def task(self, split: Split, index: int) -> Task:
        return self.source.task(split, index)

    def score(self, task: Task, answer: str) -> Score:
        final = after_thinking(answer, required=self.thinking)
        if final is None:
            return Score(0.0, parts=dict.fromkeys(self.rewards, 0.0) if len(self.rewards) > 1 else {})
        found = {name: _as_score(reward(task, final)) for name, (reward, _) in self.rewards.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        return combine(found, {name: weight for name, (_, weight) in self.rewards.items()})


def combine(scores: Mapping[str, Score], weights: Mapping[str, float]) -> Score:
    """The weighted sum. Where one part has no value the whole has none: a sum without it would be another reward."""
    if failed := next((score for score in scores.values() if score.reward is None), None):
        return replace(failed, parts={})
    values = {name: score.reward for name, score in scores.items() if score.reward is not None}
    inner = {f"{name}.{part}": value for name, score in scores.items() for part, value in score.parts.items()}
    total = sum(weights[name] * value for name, value in values.items())
    return Score(total, parts=values | inner, doubtful=any(score.doubtful for score in scores.values()))


def rewarded(source: TaskSource, config: TaskConfig) -> TaskSource:
    """The source with the rewards of its config; as it is where nothing but its own is asked for."""
    named = [RewardConfig(kind=config.reward)] if config.reward else list(config.rewards)
    thinking = config.thinking or THINK in config.prefill  # what the prompt opens the answer has to close
    if not named and not thinking:
        return source
    named = named or [RewardConfig(kind=OWN)]
    rewards = {reward.name or reward.kind: (_build(reward.kind, source, config), reward.weight) for reward in named}
    if len(rewards) < len(named):
        raise TaskError(f"task source {config.source}: two rewards have the same name; set name on one of them")
    return Rewarded(source.name, source, rewards, thinking)


def kinds_of(tasks: Sequence[TaskConfig]) -> set[str]:
    """The rewards that tasks name."""
    lines = unfolded(tasks)
    named = {kind for task in lines for kind in (task.reward, *(reward.kind for reward in task.rewards)) if kind}
    programs = any(task.source.startswith(f"{LIVECODEBENCH}/") or task.source == PYTHON_TOOL for task in lines)
    # A row that says itself how it is judged may be of either kind.
    return named | ({"math", "code"} if ROW in named else set()) | ({"code"} if programs else set())


def runs_programs(tasks: Sequence[TaskConfig]) -> bool:
    """Whether scoring starts processes, each in a sandbox of its own."""
    return "code" in kinds_of(tasks)


def _build(kind: str, source: TaskSource, config: TaskConfig) -> Reward:
    place = config.answer
    match kind.partition("/"):
        case ("own", "", ""):
            return source.score
        case ("exact", "", ""):
            return lambda task, answer: float(_final(answer, place) == " ".join(_known(task).split()))
        case ("contains", "", ""):
            return lambda task, answer: float(_holds(_final(answer, place) or "", " ".join(_known(task).split())))
        case ("math", "", ""):
            load_parser()  # seconds that no answer is to wait for
            return lambda task, answer: _math(task, answer, place)
        case ("format", "", ""):
            return lambda _, answer: float(bool(final_answer(answer, place)))
        case ("code", "", ""):
            find_bubblewrap()  # a refusal is told before anything else is done
            return _code(config.code)
        case ("row", "", ""):
            load_parser()  # seconds that no answer is to wait for
            find_bubblewrap()
            return _by_row(config.code)
        case ("python", "/", where):
            function = load_function(where, config.files)
            return lambda task, answer: float(function(dict(task.entry), answer))
    raise TaskError(f"reward {kind!r}: not one of {', '.join(NAMES)} and python/FILE.py:FUNCTION")


def _holds(answer: str, known: str) -> bool:
    """Whether the right answer stands there as words of their own."""
    return bool(known) and re.search(rf"(?<!\w){re.escape(known)}(?!\w)", answer) is not None


def _math(task: Task, answer: str, place: Place) -> float:
    final = final_answer(answer, place)
    return float(final is not None and same(_known(task), final))


def _code(config: CodeConfig) -> Reward:
    bounds = Bounds(config.seconds, config.memory_mb << 20, config.output_kb << 10)
    tests: dict[str, tuple[Test, ...]] = {}

    def reward(task: Task, answer: str) -> Score:
        key = str(task.entry["question"])
        if key not in tests:
            tests[key] = read_tests(task.entry.get("tests"), f"{task.source} task {task.index}")
        return judge_program(last_python(answer), tests[key], bounds)

    return reward


def _by_row(config: CodeConfig) -> Reward:
    """Each row is judged by its own `task_type`; of several right answers any is right."""
    program = _code(config)

    def reward(task: Task, answer: str) -> float | Score:
        where = f"{task.source} task {task.index}"
        if "verification_info" not in task.entry:
            raise TaskError(f"{where}: has no verification_info; reward row is for rows that say how they are judged")
        if task.entry["task_type"] == CODE:
            return program(task, answer)
        boxed = last_box(answer)
        return float(boxed is not None and any(same(right, boxed) for right in right_answers(task.entry, where)))

    return reward


def _known(task: Task) -> str:
    known = task.entry.get("answer")
    if known is None:
        raise TaskError(f"{task.source} task {task.index}: has no answer to compare with; map a column to answer")
    return str(known)


def _final(answer: str, place: Place) -> str | None:
    final = final_answer(answer, place)
    return None if final is None else " ".join(final.split())


def _as_score(found: float | Score) -> Score:
    return found if isinstance(found, Score) else Score(float(found))
