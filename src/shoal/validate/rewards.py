"""Rewards and advantages computed again: a worker's own are a claim."""

import math
from collections.abc import Sequence

import torch

from shoal.rl.advantages import group_advantages
from shoal.rollout.record import Submission
from shoal.tasks.source import Score
from shoal.validate.finding import Finding

CHECK = "rewards"
# Both sides compute in float32; what is stored has passed through it too.
TOLERANCE = 1e-5


def check_rewards(submission: Submission, scores: Sequence[Score], *, normalise: bool) -> Finding | None:
    """`scores` are the validator's own, in the order of the samples."""
    for number, (sample, score) in enumerate(zip(submission.rollouts, scores, strict=True)):
        if not _same(sample.reward, score.reward):
            rule = "the reward is what the task's scorer gives the answer"
            return Finding(CHECK, rule, sample.reward, score.reward if score.error == "" else score.error, number)
    rewards_GS = torch.tensor([math.nan if s.reward is None else s.reward for s in scores])
    rewards_GS = rewards_GS.view(len(submission.groups()), -1)
    advantages = group_advantages(rewards_GS, normalise=normalise).flatten().tolist()
    for number, (sample, advantage) in enumerate(zip(submission.rollouts, advantages, strict=True)):
        if not _same(sample.advantage, advantage):
            return Finding(CHECK, "the advantage follows from the group's rewards", sample.advantage, advantage, number)
    return None


def _same(claimed: float | None, own: float | None) -> bool:
    if claimed is None or own is None:
        return claimed is None and own is None
    return abs(claimed - own) <= TOLERANCE * max(1.0, abs(own))
