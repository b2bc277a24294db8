"""Judges of answers that are one text."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from shoal.errors import TaskError
from shoal.tasks.environments.environment import Played
from shoal.tasks.source import Split, Task


class NoEpisodes:
    """Plays nothing: for scorers whose tasks are not environments."""

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Any) -> "Future[Played]":
        raise TaskError(f"{task.source}: is not an environment")
