"""Environments as a source of tasks: a task's prompt is what the environment asks under a seed that follows from i.

Answers to such a task are episodes. They are played and scored by a host (`host.py`), never as one text.
"""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Unpack

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.environments.environment import (
    Environment,
    ModuleEnvironment,
    Observation,
    Played,
    State,
    demonstration,
)
from shoal.tasks.environments.foreign import build_foreign, hash_of
from shoal.tasks.files import is_foreign
from shoal.tasks.prompts import first_in
from shoal.tasks.source import (
    How,
    Score,
    Split,
    Task,
    TaskSource,
    TokenCount,
    part_of,
    score_of,
    scorer_error,
)
from shoal.tasks.sources.user_python import load_module

KIND = "environment"
BUILT_IN = ("calculator", "python", "game", "search", "maze")
MODULES = {"python": "python_tool"}
MAX_STATES = 4096


class EnvironmentSource:
    """The tasks of one environment."""

    def __init__(self, name: str, environment: Environment, template: str = "{question}") -> None:
        self.name = name
        self.sha256 = environment.sha256
        self.environment = environment
        self._template = template
        self._entry = lru_cache(maxsize=4096)(self._find)

    def task(self, split: Split, index: int) -> Task:
        entry = self._entry(split, index)
        prompt = self._template.replace("{question}", entry["question"])
        return Task(self.name, index, prompt, None, entry, entry["system"])

    def reset(self, split: Split, index: int) -> State:
        return self.environment.reset(self._entry(split, index)["seed"])

    def score(self, task: Task, answer: str) -> float | Score:
        del answer
        raise TaskError(f"{task.source}: is an environment, whose episodes are played in turns; one text has no score")

    def _find(self, split: Split, index: int) -> dict[str, Any]:
        return first_in(split, self.name, index, self._make, "have its prompts differ more by their seeds")

    def _make(self, seed: int) -> dict[str, Any]:
        try:
            state = self.environment.reset(seed)
        except TaskError:
            raise
        except (Exception, SystemExit) as error:  # it may be a stranger's
            raise TaskError(f"task source {self.name}: reset({seed}) raised {error!r:.200}; fix it") from error
        prompt, system = state["prompt"], state.get("system") or ""
        if not isinstance(system, str):
            raise TaskError(f"task source {self.name}: reset({seed}) returned system = {system!r:.80}; must be text")
        try:
            f"{system}{prompt}".encode()
        except UnicodeEncodeError as error:
            where = f"task source {self.name}: reset({seed}) asks {prompt[:80]!r}"
            raise TaskError(f"{where}, with a lone surrogate, which no tokenizer takes; leave it out") from error
        return {"question": prompt, "system": system, "seed": seed}


def build_environment(task: TaskConfig, held: Callable[[str], Path]) -> EnvironmentSource:
    """The source that a line of a config names; `held` says where a file that it names is kept."""
    place = task.source.partition("/")[2]
    options: dict[str, Any] = dict(task.options)
    if task.reward or task.rewards or task.thinking or task.prefill:
        raise TaskError(
            f"task source {task.source}: an environment scores its episodes itself; leave out reward, rewards, "
            "thinking and prefill"
        )
    if "://" in place and not task.name:
        raise TaskError(f'task source {task.source}: a server has no name of its own; add name = "..." to its line')
    environment = build_foreign(place, options, task.source, held) or _own_form(place, options, task, held)
    if not environment.deterministic and task.unverified == "refuse":
        raise TaskError(
            f"task source {task.source}: {_not_deterministic(task.source)}, so nobody can check what it told a "
            'worker; set unverified = "accept" on its line if the run takes that on trust'
        )
    if environment.deterministic and task.unverified == "accept":
        raise TaskError(
            f'task source {task.source}: unverified = "accept", but it is deterministic, so validators play its '
            "episodes again; leave unverified out, or declare that it is not (deterministic = False)"
        )
    return EnvironmentSource(task.environment_name, environment, task.template)


def _own_form(place: str, options: dict[str, Any], task: TaskConfig, held: Callable[[str], Path]) -> ModuleEnvironment:
    """An environment with `reset`, `step` and `score`: a file, or one of those that are built in."""
    if place.endswith(".py"):
        path = held(place)
        return ModuleEnvironment(load_module(str(path)), options, task.source, hash_of(path))
    if place not in BUILT_IN:
        raise TaskError(
            f"task source {task.source}: unknown; built in are {', '.join(BUILT_IN)}; or name a .py file, "
            "harness/FILE.py, verifiers/NAME or openenv/FILE.py:CLASS"
        )
    if place == "python":
        options |= {"bounds": task.code}
    if place == "search" and "corpus" in options:
        options["corpus"] = held(str(options["corpus"]))
    module = importlib.import_module(f"shoal.tasks.environments.{MODULES.get(place, place)}")
    return ModuleEnvironment(module, options, task.source)


def _not_deterministic(source: str) -> str:
    if is_foreign(source):
        return "does not say that it is deterministic (options.deterministic = true, if it is)"
    return "declares that it is not deterministic"


def environments_of(tasks: Sequence[TaskConfig]) -> dict[str, TaskConfig]:
    """The lines of a config that are environments, by the names of their tasks."""
    return {task.environment_name: task for task in tasks if task.source.startswith(f"{KIND}/")}


class Sessions:
    """Plays episodes in this process, and keeps the states of those that go on."""

    def __init__(self, source: TaskSource, max_text: int, on_memory_error: Callable[[], None] = lambda: None) -> None:
        """`on_memory_error` is called before an episode that has met one is given up for it."""
        self._source, self._max_text, self._on_memory_error = source, max_text, on_memory_error
        # An ordered one gives up its oldest in one call, whatever other threads do to it meanwhile.
        self._states: OrderedDict[int, tuple[State, int]] = OrderedDict()

    def play(
        self,
        split: Split,
        task: Task,
        actions: Sequence[str],
        known: int = 0,
        score: bool = False,
        episode: int = -1,
        tokens: Sequence[TokenCount] = (),
    ) -> Played:
        """See `Host.play`. Whatever the environment raises is the episode's own error."""
        try:
            return self._play(split, task, actions, known, score, episode, tokens)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may be a stranger's, and one that exits must not end the thread it is in
            self._states.pop(episode, None)
            if isinstance(error, MemoryError):
                self._on_memory_error()
            return Played(error=scorer_error(task, error, "environment"))

    def _play(
        self,
        split: Split,
        task: Task,
        actions: Sequence[str],
        known: int,
        score: bool,
        episode: int,
        tokens: Sequence[TokenCount],
    ) -> Played:
        source = environment_source(part_of(self._source, task.source), task.source)
        state, done = self._states.pop(episode, (None, 0))
        if state is None or done > known:
            state, done = source.reset(split, task.index), 0
        observations, over = list[Observation](), False
        for number, action in enumerate(actions[done:], done):
            if source.environment.tells_tokens:
                state["tokens"] = tokens[number] if number < len(tokens) else None
            said = self._bounded(source.environment.step(state, action))
            over = said.over
            if number >= known:
                observations.append(said)
            if over:
                break
        if over or score:
            return Played(tuple(observations), score_of(task, source.environment.score(state)))
        if episode >= 0:
            self._states[episode] = state, len(actions)
            if len(self._states) > MAX_STATES:  # some were given up: one that is missed is played again
                with suppress(KeyError):
                    self._states.popitem(last=False)
        return Played(tuple(observations))

    def _bounded(self, said: Observation) -> Observation:
        """No more text than the run allows. Surrogates, which no tokenizer takes, become question marks."""
        text = "" if said.over else said.text[: self._max_text].encode(errors="replace").decode()
        return Observation(text, said.over, said.role, said.doubtful)


class LocalHost:
    """Plays episodes in this process, one after the other: for environments that are trusted, and for tests."""

    def __init__(self, source: TaskSource, max_text: int = 1000) -> None:
        self._sessions = Sessions(source, max_text)

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Unpack[How]) -> "Future[Played]":
        found: Future[Played] = Future()
        found.set_result(self._sessions.play(split, task, actions, **how))
        return found


def environment_source(source: TaskSource, name: str) -> EnvironmentSource:
    """The environment behind a source, which may have a system turn around it; TaskError if it is not one."""
    if (inner := _inner(source)) is None:
        raise TaskError(f"{name}: is not an environment, and is not played in turns")
    return inner


def _inner(source: TaskSource) -> EnvironmentSource | None:
    """The environment that other sources may stand around."""
    inner: Any = source
    while inner is not None and not isinstance(inner, EnvironmentSource):
        inner = getattr(inner, "source", None)
    return inner


def worked_turns(source: TaskSource, task: Task) -> list[tuple[str, Observation]] | None:
    """A worked answer turn by turn, each with what it is answered: one turn, or those of an environment's own episode.

    None where the source knows none.
    """
    if task.answer is not None:
        return [(task.answer, Observation(over=True))]
    inner = _inner(source)
    return demonstration(inner.environment, task.entry["seed"]) if inner is not None else None


def played_to_json(played: Played) -> Mapping[str, object]:
    """What a host's process tells of an episode."""
    score = played.score
    return {
        "observations": [[o.text, o.over, o.role, o.doubtful] for o in played.observations],
        "score": None if score is None else [score.reward, score.error, dict(score.parts), score.doubtful],
        "error": played.error,
    }


def played_from_json(said: Any) -> Played:
    """The same read again; ValueError for anything else."""
    match said:
        case {"observations": [*rows], "score": None | [*_] as score, "error": str() as error}:
            return Played(tuple(map(_observation, rows)), _score(score), error)
    raise ValueError


def _observation(row: Any) -> Observation:
    match row:
        case [str() as text, bool() as over, "user" | "tool" as role, bool() as doubtful]:
            return Observation(text, over, role, doubtful)
    raise ValueError


def _score(said: Any) -> Score | None:
    match said:
        case None:
            return None
        case [float() | int() | None as reward, str() as error, dict() as parts, bool() as doubtful]:
            value = None if reward is None else float(reward)
            return Score(value, error, {str(name): float(part) for name, part in parts.items()}, doubtful)
    raise ValueError
