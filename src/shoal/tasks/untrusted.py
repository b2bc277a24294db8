"""Dry run of strangers' tasks, with limits on memory and time, before anything is done for their run.

A table of a few kilobytes can unfold to gigabytes, a file can end its reader, and a generator's options can ask for a
sum of a billion terms. The process that makes tasks has little memory and is confined; a node that joins is told
at once what it cannot make.
"""

from collections.abc import Sequence

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import split_up
from shoal.tasks.rewards.scorer import Scorer

TRIAL_S = 120.0
DRAWN = 4


def try_tasks(tasks: Sequence[TaskConfig], whose: str, seconds: float = TRIAL_S) -> None:
    """TaskError for tasks that take too much to be made, or cannot be. Only those that hold something are tried."""
    if not any(task.files or task.options or task.difficulty for task in tasks):
        return
    try:
        with Scorer(tasks) as scorer:
            scorer.make(
                [(number, "train", index) for number in range(len(split_up(tasks))) for index in range(DRAWN)], seconds
            )
    except TaskError as error:
        raise TaskError(f"{whose}: {error}; do not join it") from None
