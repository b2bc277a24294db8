"""Scores of a file's answers that the validator finds itself: texts go to the scorer, episodes are played again."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from itertools import count

from shoal.config import TaskConfig
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout, read_parts
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.tasks.environments.environment import Played
from shoal.tasks.files import code_of
from shoal.tasks.source import OWN_PARTS, Judge, Score, Task, TaskSource, TokenCount, part_of
from shoal.validate.checks.episodes import CHECK, UNSURE, EpisodeRules, check_episode, is_score_close

# How often an answer is scored again before its worker is blamed.
TRIES = 4
# How often an episode is played again, so many at a time: one that differs seldom must be found out too.
EPISODE_TRIES = 4 * TRIES
# Episodes of other tasks that are played between the turns of one.
BESIDE = 3
_SESSIONS = count()
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
    unsteady: set[str] = field(default_factory=set)
    """Environments, code of others, that were seen to play differently though they are called deterministic: nobody is
    blamed for what they said."""

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
                if finding := self._compare(submission, number, own, seconds):
                    return found, finding
                found.append(_score(own))
        return found, None

    def forgiving(self, submission: Submission, own: Sequence[Score]) -> list[Score]:
        """The same scores, doubtful where an environment's are those of the file but for the last digits."""
        return [
            replace(score, doubtful=True) if self._is_played(sample) and is_score_close(sample, score) else score
            for sample, score in zip(submission.rollouts, own, strict=True)
        ]

    def otherwise(self, submission: Submission, number: int, own: Score, seconds: float = math.inf) -> Score | None:
        """Another score that the same answer is given here, if it is scored again; None if there is none."""
        sample = submission.rollouts[number]
        if self._is_played(sample):
            again: Iterator[Score] = map(_score, self._played_again(submission, number, seconds))
        elif sample.source in self.environments:
            return None
        else:
            again = iter(self.judge.scores("train", [self._asked(sample)] * TRIES, seconds))
        other = next((score for score in again if score != own), None)
        self._note(sample.source, other)
        return other

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

    def _played_again(self, submission: Submission, number: int, seconds: float) -> Iterator[Played]:
        """The same episode some times more: turn by turn between others, as its worker played it, then as a whole.

        What an environment keeps outside its states, such as the generator of `random`, shows in the first way alone.
        """
        deadline, sample = time.monotonic() + seconds, submission.rollouts[number]
        others = {one.task: one for one in submission.rollouts if one.source == sample.source}
        others.pop(sample.task)
        yield from self._turn_by_turn(sample, list(others.values())[:BESIDE], deadline)
        for _ in range(0, EPISODE_TRIES, TRIES):
            yield from self._played(self._episodes([sample] * TRIES), deadline - time.monotonic())

    def _turn_by_turn(self, sample: Rollout, beside: Sequence[Rollout], deadline: float) -> Iterator[Played]:
        """One episode twice and others between, all played side by side, one turn after the other."""
        samples = [sample, *beside, sample]
        sessions = [(next(_SESSIONS), *episode) for episode in self._episodes(samples)]
        seen = [list[Played]() for _ in samples]
        for turn in range(1, max(len(actions) for _, _, actions, _ in sessions) + 1):
            playing = {
                number: self.judge.play(
                    "train",
                    task,
                    actions[:turn],
                    known=turn - 1,
                    score=turn == len(actions),
                    episode=session,
                    tokens=tokens[:turn],
                )
                for number, (session, task, actions, tokens) in enumerate(sessions)
                if turn <= len(actions) and not any(one.error for one in seen[number])
            }
            wait(playing.values(), timeout=None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
            for number, one in playing.items():
                seen[number].append(one.result() if one.done() else Played(error="it takes too long turn by turn"))
                one.cancel()
        for turns in (seen[0], seen[-1]):
            if turns:
                yield replace(turns[-1], observations=tuple(said for one in turns for said in one.observations))

    def _compare(self, submission: Submission, number: int, own: Played, seconds: float) -> Finding | None:
        assert self.rules is not None
        sample = submission.rollouts[number]
        finding = check_episode(number, sample, own, self.rules)
        if finding is None or finding.check != CHECK or self._is_steady(submission, number, own, seconds):
            return finding
        # An environment that is called deterministic may not be: nobody is blamed where it plays otherwise each time.
        rule = f"an episode is the same each time it is played, and {finding.rule}"
        return replace(finding, check=UNSURE, rule=rule)

    def _is_steady(self, submission: Submission, number: int, own: Played, seconds: float) -> bool:
        """Whether an environment plays an episode the same each time, and has done so with all others before."""
        source = submission.rollouts[number].source
        if source in self.unsteady:
            return False
        again = self._played_again(submission, number, seconds)
        other = next((one for one in again if one.observations != own.observations), None)
        self._note(source, other)
        return other is None

    def _note(self, source: str, other: Played | Score | None) -> None:
        """Code of others that has played differently once may have done so for any worker. What is built in says itself
        which of its answers may differ."""
        if other is not None and not other.error and source in self.environments and code_of(self.environments[source]):
            self.unsteady.add(source)


def _score(own: Played) -> Score:
    """The score of an episode; void where it could not be played."""
    if own.error or own.score is None:
        return Score(None, own.error or "the environment gave no score")
    return replace(own.score, doubtful=own.score.doubtful or any(seen.doubtful for seen in own.observations))


def _claimed(sample: Rollout) -> Score:
    """The worker's own word, for an environment that nobody can play again and the run trusts."""
    parts = {name: value for name, value in read_parts(sample.parts).items() if name not in OWN_PARTS}
    return Score(sample.task_reward, sample.error, parts)
