"""Reward check: rewards and advantages are recomputed; a worker's own are a claim."""

import math
from collections.abc import Mapping, Sequence

import torch

from shoal.protocol.rollout import read_parts, write_parts
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.rl.advantages import group_advantages
from shoal.tasks.source import Score
from shoal.validate.checks.blame_margin import graded

CHECK = "rewards"
# Trainers recompute advantages, so those in a file may be off by what summing in another order does.
TOLERANCE = 1e-5
# Rewards may not: in a group without signal the advantage divides by whatever they differ by. One rounding of the
# float32 that they are stored as is less than what counts as signal.
ROUNDING = 2.0**-23


def check_rewards(submission: Submission, scores: Sequence[Score], *, normalise: bool) -> Finding | None:
    """`scores` are the validator's own, in the order of the samples."""
    for number, (sample, score) in enumerate(zip(submission.rollouts, scores, strict=True)):
        if score.reward is None and sample.reward is not None:
            return Finding("scorer", "a reward can be computed again", sample.reward, score.error, number)
        if score.reward is not None and sample.reward is None:
            # Nobody gains by it, and on a slow machine a scorer may well have run out of time.
            return Finding("scorer", "an answer that can be scored is scored", repr(sample.error), score.reward, number)
        if not _same_reward(sample.reward, score.reward) and score.doubtful:
            # A program that takes about as long as it may is done in time on one machine and not on another.
            return Finding("scorer", "a reward can be computed again", sample.reward, score.reward, number)
        if not _same_reward(sample.reward, score.reward):
            rule = "the reward is what the task's scorer gives the answer"
            return Finding(CHECK, rule, sample.reward, score.reward, number)
        if not _same_parts(read_parts(sample.parts), score.parts):
            rule = "the parts of a reward are those that the scorer finds"
            return Finding("scorer" if score.doubtful else CHECK, rule, sample.parts, write_parts(score.parts), number)
    rewards_GS = torch.tensor([math.nan if s.reward is None else s.reward for s in scores])
    rewards_GS = rewards_GS.view(len(submission.groups()), -1)
    advantages = group_advantages(rewards_GS, normalise=normalise).flatten().tolist()
    return graded(lambda times: _check_advantages(submission, advantages, times * TOLERANCE))


def _check_advantages(submission: Submission, advantages: Sequence[float], tolerance: float) -> Finding | None:
    for number, (sample, advantage) in enumerate(zip(submission.rollouts, advantages, strict=True)):
        if not abs(sample.advantage - advantage) <= tolerance * max(1.0, abs(advantage)):
            return Finding(CHECK, "the advantage follows from the group's rewards", sample.advantage, advantage, number)
    return None


def _same_parts(claimed: Mapping[str, float], own: Mapping[str, float]) -> bool:
    """As close as floats written as text are; parts of a score that failed say nothing."""
    return claimed.keys() == own.keys() and all(
        math.isclose(claimed[name], own[name], rel_tol=ROUNDING, abs_tol=ROUNDING) for name in own
    )


def _same_reward(claimed: float | None, own: float | None) -> bool:
    return claimed == own or (claimed is not None and own is not None and abs(claimed - own) <= ROUNDING * abs(own))
