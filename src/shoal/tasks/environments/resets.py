"""Whether an environment asks the same under the same seed, which is found out before a run is made with it.

An episode is reset more than once: where its task is made, where it is played, and by validators. A `reset` that asks
something else each time would have the policy play another episode than it was asked, and an honest worker's prompt
would not be the validator's. So it must follow from the seed even where the answers of `step` need not.
"""

from collections.abc import Sequence

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.environments.source import environments_of
from shoal.tasks.files import code_of
from shoal.tasks.rewards.scorer import Scorer
from shoal.tasks.source import Task

# Tasks that are compared.
TASKS = 4
SHOWN = 80


def check_resets(tasks: Sequence[TaskConfig]) -> None:
    """Resets each environment that is code of others in two processes; a TaskError if they do not ask the same."""
    lines = [line for line in environments_of(tasks).values() if code_of(line)]
    if not lines:
        return
    for line, one, other in zip(lines, _asked(lines), _asked(lines), strict=True):
        for task, again in zip(one, other, strict=True):
            if (task.system, task.prompt) != (again.system, again.prompt):
                raise TaskError(
                    f"task source {line.source}: for the same seed its reset asks {_shown(task)} and, in another "
                    f"process, {_shown(again)}; what it asks must follow from the seed, also with unverified = "
                    '"accept": draw from random.Random(seed), and leave the clock and the network to step'
                )


def _asked(lines: Sequence[TaskConfig]) -> list[list[Task]]:
    """The first tasks of each line, by a process of their own."""
    with Scorer(lines) as scorer:
        made = scorer.make([(number, "train", index) for number in range(len(lines)) for index in range(TASKS)])
    return [made[first : first + TASKS] for first in range(0, len(made), TASKS)]


def _shown(task: Task) -> str:
    return repr("\n".join(filter(None, (task.system, task.prompt))))[:SHOWN]
