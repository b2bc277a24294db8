"""Scores of a file's answers that the validator finds itself: texts go to the scorer, episodes are played again."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace

from shoal.config import TaskConfig
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout, read_parts
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.tasks.environments.environment import Played
from shoal.tasks.source import OWN_PARTS, Judge, Score, Task, TaskSource, TokenCount, part_of
from shoal.validate.checks.episodes import CHECK, UNSURE, EpisodeRules, check_episode

# How often an answer is scored again, or an episode played again, before its worker is blamed.
TRIES = 4
EpisodeToPlay = tuple[Task, tuple[str, ...], tuple[TokenCount, ...]]
"""A task, what was said in an episode of it, and how many tokens that was."""


@dataclass(frozen=True, slots=True)
class OwnScores:
    """Scores answers for a validator."""

    policy: Policy
    tasks: TaskSource
    judge: Judge
    environments: Mapping[str, TaskConfig]
    rules: EpisodeRules | None
    """None where no task is an environment."""

    def scores(self, submission: Submission, seconds: float = math.inf) -> tuple[list[Score], Finding | None]:
        """A score for each answer, in order, and the first episode that is not as its environment plays it."""
        samples = submission.rollouts
        texts = [sample for sample in samples if sample.source not in self.environments]
        scored = iter(self.judge.scores("train", [self._asked(s) for s in texts], seconds) if texts else ())
        played = self._played_once(self._episodes([s for s in samples if self._is_played(s)]), seconds)
        found = list[Score]()
        for number, sample in enumerate(samples):
            if sample.source not in self.environments:
                found.append(next(scored))
            elif not self._is_played(sample):
                found.append(_claimed(sample))
            else:
                own = next(played)
                if finding := self._compare(number, sample, own, seconds):
                    return found, finding
                found.append(_score(own))
        return found, None

    def again(self, sample: Rollout, seconds: float = math.inf) -> list[Score]:
        """The same answer scored a few times more."""
        if self._is_played(sample):
            return [_score(own) for own in self._played(self._episodes([sample] * TRIES), seconds)]
        if sample.source in self.environments:
            return []
        return self.judge.scores("train", [self._asked(sample)] * TRIES, seconds)

    def _is_played(self, sample: Rollout) -> bool:
        line = self.environments.get(sample.source)
        return line is not None and line.unverified == "refuse"

    def _asked(self, sample: Rollout) -> tuple[Task, str]:
        return self._task(sample), self.policy.decode(sample.completion)

    def _task(self, sample: Rollout) -> Task:
        return part_of(self.tasks, sample.source).task("train", sample.task)

    def _episodes(self, samples: Sequence[Rollout]) -> list[EpisodeToPlay]:
        rules = self.rules
        if rules is None:
            assert not samples
            return []
        return [(self._task(one), tuple(rules.actions(one)), tuple(rules.tokens(one))) for one in samples]

    def _played_once(self, asked: Sequence[EpisodeToPlay], seconds: float) -> Iterator[Played]:
        """Episodes with the same actions on the same task, of which groups have many, are played once for all."""
        own = [(task.source, task.index, actions, tokens) for task, actions, tokens in asked]
        distinct = dict(zip(own, asked, strict=True))
        found = dict(zip(distinct, self._played(list(distinct.values()), seconds), strict=True))
        return (found[key] for key in own)

    def _played(self, asked: Sequence[EpisodeToPlay], seconds: float) -> Iterator[Played]:
        """Episodes played side by side; one that is not done after so many seconds is void here."""
        deadline = time.monotonic() + seconds
        playing = [
            self.judge.play("train", task, actions, score=True, tokens=tokens) for task, actions, tokens in asked
        ]
        late = Played(error=f"episodes take longer than {seconds:g} s together")
        wait(playing, timeout=None if seconds == math.inf else max(0.0, deadline - time.monotonic()))
        found = [one.result() if one.done() else late for one in playing]
        for one in playing:
            one.cancel()  # what is late is not waited for, and holds nobody else up
        return iter(found)

    def _compare(self, number: int, sample: Rollout, own: Played, seconds: float) -> Finding | None:
        assert self.rules is not None
        finding = check_episode(number, sample, own, self.rules)
        if finding is None or finding.check != CHECK:
            return finding
        # An environment that is called deterministic may not be: nobody is blamed where it plays otherwise each time.
        again = self._played(self._episodes([sample] * TRIES), seconds)
        if any(other.observations != own.observations for other in again):
            rule = f"an episode is the same each time it is played, and {finding.rule}"
            return replace(finding, check=UNSURE, rule=rule)
        return finding


def _score(own: Played) -> Score:
    """The score of an episode; void where it could not be played."""
    if own.error or own.score is None:
        return Score(None, own.error or "the environment gave no score")
    return replace(own.score, doubtful=own.score.doubtful or any(seen.doubtful for seen in own.observations))


def _claimed(sample: Rollout) -> Score:
    """The worker's own word, for an environment that nobody can play again and the run trusts."""
    parts = {name: value for name, value in read_parts(sample.parts).items() if name not in OWN_PARTS}
    return Score(sample.task_reward, sample.error, parts)
