"""Length budgets: how long an answer is to be is drawn from the lease, told in the prompt, and part of the reward.

The target follows from the lease's seed, so a validator draws the same one. The two forms are those of L1 (Aggarwal and
Welleck 2025, arXiv:2503.04697): `exact` asks for that many tokens, as INTELLECT-2 did, and `max` for no more.
"""

from collections.abc import Sequence
from dataclasses import replace

from shoal.config import LengthConfig
from shoal.tasks.source import LENGTH_PART, TASK_PART, Score, Task, draw

# L1's delta: what a right answer of just the allowed length earns in the `max` form.
MAX_FORM_AT_TARGET = 0.5


def target_of(config: LengthConfig, *seed: object) -> int | None:
    """The target that a seed draws; None where the run has no budgets."""
    if not config.targets:
        return None
    return config.targets[draw("length", *seed) % len(config.targets)]


def budgeted(task: Task, target: int | None, config: LengthConfig) -> Task:
    """The task with its target in the prompt."""
    if target is None:
        return task
    return replace(task, prompt=config.prompt.replace("{target}", str(target)).replace("{prompt}", task.prompt))


def with_length(score: Score, length: int, target: int | None, config: LengthConfig) -> Score:
    """The score with what the length adds to it. Task and length stay apart as parts."""
    if target is None or score.reward is None:
        return score
    if config.form == "exact":
        reward = score.reward - config.alpha * abs(target - length)
    else:
        reward = score.reward * min(1.0, max(0.0, config.alpha * (target - length) + MAX_FORM_AT_TARGET))
    parts = {**score.parts, TASK_PART: score.reward, LENGTH_PART: reward - score.reward}
    return replace(score, reward=reward, parts=parts)


def with_lengths(
    scores: Sequence[Score], lengths: Sequence[int], targets: Sequence[int | None], config: LengthConfig
) -> list[Score]:
    """The same for several answers, each with its own length and target."""
    return [with_length(*one, config) for one in zip(scores, lengths, targets, strict=True)]
