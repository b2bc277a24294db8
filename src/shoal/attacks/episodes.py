"""Lies about what happened between the policy and its environment. They need tasks that are played in turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shoal.attacks.base import episode_attack
from shoal.generate.engine import Completion, Request
from shoal.generate.episodes import EnvironmentCall, Episode, EpisodeCompletion
from shoal.generate.submission_builder import Maker
from shoal.tasks.environments.environment import Observation, Played
from shoal.tasks.source import Score, Task


class _Lying(Maker):
    """Plays episodes of another kind than the honest one."""

    kind: ClassVar[type[Episode]]

    def episode(self, task: Task, request: Request) -> Episode:
        return self.kind.of(request, task, self.config.turns, self.policy, self.turns)


class _Forged(Episode):
    def observe(self, played: Played) -> None:
        seen = tuple(replace(o, text="1" + o.text[::-1]) if not o.over else o for o in played.observations)
        Episode.observe(self, replace(played, observations=seen))


@episode_attack
class ForgedToolOutput(_Lying):
    """Writes down another answer than the tool gave, and has the policy go on from there."""

    kind = _Forged


class _Edited(Episode):
    def inserted(self, observation: Observation) -> list[int]:
        honest = Episode.inserted(self, observation)
        return [*honest[:-2], honest[-1]] if len(honest) > 1 else honest * 2


@episode_attack
class EditedEnvironmentText(_Lying):
    """Drops a token of the inserted text, as a worker with a wrong separator would."""

    kind = _Edited


@dataclass(slots=True)
class _Skipping(Episode):
    first_proof: int = 0
    """Bytes of the proof of its first turn."""

    def add(self, piece: Completion) -> None:
        if not self.runs:
            self.first_proof = len(piece.proof)
        Episode.add(self, piece)

    def completion(self, key: int) -> Completion:
        whole = Episode.completion(self, key)
        assert isinstance(whole, EpisodeCompletion)
        if len(whole.runs) < 3:
            return whole
        first, behind = whole.runs[0], whole.runs[0] + whole.runs[1]
        return replace(
            whole,
            tokens=whole.tokens[behind:],
            logprobs=whole.logprobs[first:],
            proof=whole.proof[self.first_proof :],
            runs=whole.runs[2:] if len(whole.runs) > 3 else (),
        )


@episode_attack
class SkippedTurn(_Lying):
    """Leaves the first turn out of what it hands in, as if the policy had come to the point at once."""

    kind = _Skipping


class _GoingOn(Episode):
    def observe(self, played: Played) -> None:
        ended = played.observations and played.observations[-1].over
        if ended and self.turns < self.max_turns and not self.is_full:
            seen = (*played.observations[:-1], Observation("try again"))
            played = Played(seen)
        Episode.observe(self, played)


@episode_attack
class ExtraTurn(_Lying):
    """Gives the policy another turn after the environment was over."""

    kind = _GoingOn


@episode_attack
class ReplayedEpisode(Maker):
    """Hands in the best episode of a group for every sample of it."""

    def scored(self, tasks: Sequence[Task], answers: Sequence[Completion]) -> list[Score]:
        size = self.config.sampling.group_size
        found = Maker.scored(self, tasks, answers)
        assert isinstance(answers, list)
        for first in range(0, len(answers), size):
            own = range(first, first + size)
            best = max(own, key=lambda n: (found[n].reward or 0.0, len(answers[n].tokens), -n))
            for number in own:
                answers[number] = replace(answers[best], key=answers[number].key)
                found[number] = found[best]
        return found


class _Truncated(Episode):
    def context(self) -> tuple[int, ...]:
        last = len(self.tokens) - (self.runs[-1] if self.runs else 0)
        return (*self.request.prompt, *self.tokens[last:])


@episode_attack
class TruncatedContext(_Lying):
    """Computes each turn from the prompt and the last observation alone, which is cheaper."""

    kind = _Truncated


class _OtherCall(Episode):
    def call(self) -> EnvironmentCall:
        honest = Episode.call(self)
        if len(self.actions) <= len(self.observations):
            return honest
        return replace(honest, actions=(*honest.actions[:-1], self.other()))

    def other(self) -> str:
        """The last word of the task in place of what the policy said behind its verb, or all that the task is about,
        with a digit more where the policy said just that."""
        said = self.actions[-1]
        asked = self.task.prompt.rstrip("?").split(":")[-1].strip()
        verb, space, argument = said.partition(" ")
        words = [word for word in asked.split() if word != argument]
        if space and words:
            self.actions[-1] = f"{verb} {words[-1]}"
        else:
            self.actions[-1] = asked if said != asked else f"1{asked}"
        return self.actions[-1]


@episode_attack
class OtherArguments(_Lying):
    """Calls the tool with other arguments than the policy said."""

    kind = _OtherCall


@episode_attack
class FalseOutcome(Maker):
    """Claims the opposite outcome for every second episode."""

    def scored(self, tasks: Sequence[Task], answers: Sequence[Completion]) -> list[Score]:
        honest = Maker.scored(self, tasks, answers)
        return [
            Score(float(s.reward < 0.5)) if n % 2 == 0 and s.reward is not None else s for n, s in enumerate(honest)
        ]


class _Leaving(Episode):
    def observe(self, played: Played) -> None:
        if played.score is None and not played.error:
            self.observations += played.observations
            self.is_full = self.asks = True  # it asks for the score of the state as it is
            return
        Episode.observe(self, played)


@episode_attack
class LeftEarly(_Lying):
    """Ends every episode after its first turn, because short episodes are cheaper."""

    kind = _Leaving
