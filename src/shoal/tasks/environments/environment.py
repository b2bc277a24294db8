"""What an environment is: `reset`, `step` and `score`, seeded, so that anyone can play an episode again.

An episode is what the policy said, turn by turn, and what the environment answered. It follows from the seed and from
what the policy said: a validator that plays the same actions must be given the same observations and the same score. An
environment whose answers depend on anything else says so (`deterministic = False`), and a run decides whether it takes
such episodes (`tasks.unverified`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Protocol

from shoal.errors import TaskError
from shoal.tasks.source import Score

Role = Literal["user", "tool"]
State = dict[str, Any]
"""What an environment knows of one episode; `prompt` is what the policy is asked, `system` a system turn before it."""
DEMONSTRATION_TURNS = 16


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment answers to an action."""

    text: str = ""
    over: bool = False
    """Whether the episode ends here; nothing of `text` is shown then."""
    role: Role = "user"
    """Whose turn it is in the chat template."""
    doubtful: bool = False
    """Whether another machine or another moment might have given another answer: nobody is blamed for a difference."""


@dataclass(frozen=True, slots=True)
class Played:
    """The result of playing actions: observations behind those that were known, and the score if it was asked for."""

    observations: tuple[Observation, ...] = ()
    score: Score | None = None
    error: str = ""
    """Why the episode cannot be played on: its environment raised, hung or crashed. Such an episode has no reward."""


class Environment(Protocol):
    """One kind of episodes. States are this object's own: nobody else looks into them but for `prompt` and `system`."""

    deterministic: bool
    sha256: str | None
    """Hash of its code or data, where these are not part of this release."""
    tells_tokens: bool
    """Whether its state is given the action's `tokens` (`TokenCount`) before each step."""

    def reset(self, seed: int) -> State: ...

    def step(self, state: State, action: str) -> Observation:
        """What the environment answers to an action; the state changes in place."""
        ...

    def score(self, state: State) -> float | Score: ...

    def solve(self, state: State) -> str | None:
        """The next action of somebody who knows how, for demonstrations; None if the environment does not tell."""
        ...


class ModuleEnvironment:
    """An environment out of a Python module with the functions `reset`, `step` and `score`."""

    tells_tokens = False

    def __init__(self, module: ModuleType, options: Mapping[str, Any], where: str, sha256: str | None = None) -> None:
        self.deterministic = bool(getattr(module, "deterministic", True))
        self.sha256 = sha256
        self._options = dict(options)
        self._where = where
        self._reset, self._step, self._score = (_function(module, name, where) for name in ("reset", "step", "score"))
        self._solve: Callable[[State], str | None] | None = getattr(module, "solve", None)
        _check_options(self._reset, self._options, where)

    def reset(self, seed: int) -> State:
        state = self._reset(seed, **self._options)
        if not isinstance(state, dict) or not isinstance(state.get("prompt"), str):
            raise TaskError(f"{self._where}: reset({seed}) returned {state!r:.80}; it must be a dict with a prompt")
        return state

    def step(self, state: State, action: str) -> Observation:
        said = self._step(state, action)
        if isinstance(said, Observation):
            return said
        if said is None:
            return Observation(over=True)
        if not isinstance(said, str):
            raise TaskError(f"{self._where}: step returned {said!r:.80}; it must be text, or None when all is over")
        return Observation(said)

    def score(self, state: State) -> float | Score:
        found: float | Score = self._score(state)
        return found

    def solve(self, state: State) -> str | None:
        return None if self._solve is None else self._solve(state)


def demonstration(environment: Environment, seed: int) -> list[tuple[str, Observation]] | None:
    """A worked episode: actions and what each was answered; None where the environment does not know how."""
    state, turns = environment.reset(seed), list[tuple[str, Observation]]()
    while len(turns) < DEMONSTRATION_TURNS:
        if (action := environment.solve(state)) is None:
            return None
        turns.append((action, environment.step(state, action)))
        if turns[-1][1].over:
            break
    return turns


def _function(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise TaskError(f"{where}: has no function {name}; an environment has reset, step and score")
    function: Callable[..., Any] = found
    return function


def _check_options(reset: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    signature = inspect.signature(reset)
    try:
        signature.bind(0, **options)
    except TypeError as error:
        raise TaskError(f"{where}: options {dict(options)} do not fit reset{signature} of it: {error}") from None
