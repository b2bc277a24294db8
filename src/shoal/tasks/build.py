"""Task sources from their config lines."""

from collections.abc import Sequence

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.gym import ReasoningGym
from shoal.tasks.source import Mixture, TaskSource


def build_source(tasks: Sequence[TaskConfig]) -> TaskSource:
    """One source out of the config's `[[tasks]]`, mixed by weight if there are several."""
    sources = [_build(task) for task in tasks]
    return sources[0] if len(sources) == 1 else Mixture(sources, [task.weight for task in tasks])


def _build(task: TaskConfig) -> TaskSource:
    kind, _, rest = task.source.partition("/")
    if kind != "reasoning-gym" or not rest:
        raise TaskError(f"task source {task.source}: unknown kind {kind!r}; write reasoning-gym/GENERATOR")
    return ReasoningGym(
        rest, dict(task.options), name=task.name, binary=task.binary, answer=task.answer, template=task.template
    )
