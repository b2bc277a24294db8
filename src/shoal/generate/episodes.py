"""An episode while it is generated: turns of the policy, and between them what its environment answers.

An episode is a chain of requests to the engine. Each one's prompt is all that there is so far, token by token: what was
drawn is never decoded and encoded again, and what is inserted was encoded once. The text of a turn goes to the
environment (`tasks/environments`), whose observation is put behind it in the form of the chat template
(`models/chat.py`).

When an episode ends is a rule that validators share: a turn is cut off, the environment says that it is over, the
turns are used up, or no token would fit behind the next observation. A turn that was cut off is not an action.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from shoal.config import TurnsConfig
from shoal.generate.engine import Completion, Request
from shoal.generate.flights import Answer
from shoal.models.chat import Turns
from shoal.models.load import Policy
from shoal.protocol.turns import ONE_TURN, Runs
from shoal.tasks.environments.environment import Observation, Played
from shoal.tasks.source import Score, Task, TokenCount

Between = Callable[[int, str, str], list[int]]
"""Tokens to insert behind a turn with this last token, for a role and its text (`Turns.between`)."""


@dataclass(frozen=True, slots=True)
class EnvironmentCall:
    """What the environment is asked: all actions so far, of which the first `known` were answered before."""

    actions: tuple[str, ...]
    known: int
    score: bool
    """Whether the episode ends with these actions whatever the environment answers."""
    tokens: tuple[TokenCount, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeCompletion(Completion):
    """A whole episode: drawn and inserted tokens in one row, log-probs and proofs of drawn ones."""

    runs: tuple[int, ...] = ()
    """Lengths of what was drawn, inserted, drawn, ...; empty for one turn."""
    score: Score | None = None


@dataclass(slots=True)
class Episode(Answer):
    """One episode as far as it has come. Attacks override one method."""

    task: Task = field(kw_only=True)
    max_turns: int = field(kw_only=True)
    turn_tokens: int = field(kw_only=True)
    decode: Callable[[Sequence[int]], str] = field(kw_only=True)
    between: Between = field(kw_only=True)
    runs: list[int] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    counts: list[TokenCount] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    score: Score | None = None
    session: int = -1
    """What its host knows it by, once it was asked."""
    asks: bool = False
    """Whether the environment is asked next, and not the engine."""
    is_full: bool = False
    """Whether nothing more can be drawn: the last turn was cut off, or no token fits behind the last observation."""

    @classmethod
    def of(cls, request: Request, task: Task, limits: TurnsConfig, policy: Policy, turns: Turns) -> Self:
        """An episode that has not begun."""
        return cls(
            request,
            task=task,
            max_turns=limits.max,
            turn_tokens=limits.tokens,
            decode=policy.decode,
            between=turns.between,
        )

    @property
    def is_acting(self) -> bool:
        return self.asks

    @property
    def turns(self) -> int:
        return (len(self.runs) + 1) // 2

    def piece(self, end: int, seed: int) -> Request:
        """The next turn, behind all that there is so far."""
        before, whole = len(self.tokens), self.request
        new = min(self.turn_tokens, end - before, whole.max_new_tokens - before)
        return replace(whole, prompt=self.context(), seed=seed, max_new_tokens=new, position=before)

    def context(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.tokens)

    def add(self, piece: Completion) -> None:
        """A turn, as it was drawn."""
        before = len(self.request.prompt) + len(self.tokens)
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.proof += piece.proof
        self.runs.append(len(piece.tokens))
        if piece.finish == "eos":
            self.actions.append(self.decode(piece.tokens))
            self.counts.append((before, len(piece.tokens)))
        else:
            self.is_full = True
        self.asks = True

    def call(self) -> EnvironmentCall:
        """What to ask the environment now."""
        is_last = self.is_full or self.turns == self.max_turns
        return EnvironmentCall(tuple(self.actions), len(self.observations), is_last, tuple(self.counts))

    def observe(self, played: Played) -> None:
        """What the environment said. The episode goes on with it, or ends and has a score."""
        self.asks = False
        if played.error:
            self._end(Score(None, played.error))
            return
        self.observations += played.observations
        if played.score is not None:
            self._end(played.score)
            return
        inserted = self.inserted(self.observations[-1])
        if len(self.tokens) + len(inserted) >= self.request.max_new_tokens:
            self.is_full = self.asks = True  # there is no room for another turn: it is scored as it is
            return
        self.insert(inserted)

    def inserted(self, observation: Observation) -> list[int]:
        return self.between(self.tokens[-1], observation.role, observation.text)

    def insert(self, tokens: Sequence[int]) -> None:
        """Puts tokens behind the last turn that the policy did not draw."""
        self.tokens += tokens
        self.runs.append(len(tokens))

    def _end(self, score: Score) -> None:
        self.score = score
        self.finish = "eos" if len(self.actions) == self.turns else "length"

    def completion(self, key: int) -> Completion:
        runs = tuple(self.runs) if self.turns > 1 else ()
        return EpisodeCompletion(
            key, self.tokens, self.logprobs, self.finish or "length", self.proof, None, runs, self.score
        )


def runs_of(completion: Completion) -> Runs:
    """The runs of an answer, as a rollout holds them."""
    runs = completion.runs if isinstance(completion, EpisodeCompletion) else ()
    return np.array(runs, np.int32) if runs else ONE_TURN
