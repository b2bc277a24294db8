"""Task check: which tasks a submission answers, and in what words, follows from its lease alone."""

from collections.abc import Callable, Collection

import numpy as np

from shoal.config import LengthConfig
from shoal.protocol.lease import asked
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding, shown
from shoal.tasks.difficulty import Table
from shoal.tasks.source import Task, TaskSource

CHECK = "tasks"
# A finding that blames nobody.
UNSURE = "scorer"
NO_BUDGET = LengthConfig()


def check_tasks(
    submission: Submission,
    tasks: TaskSource,
    encode: Callable[[Task], list[int]],
    length: LengthConfig = NO_BUDGET,
    table: Table | None = None,
    on_trust: Collection[str] = (),
) -> Finding | None:
    """Every group must answer the task that its lease draws, in the tokens that its prompt has.

    `on_trust` are sources that nobody can play again. Their prompts must follow from the seed too, which was tried
    before the run began (`tasks/environments/resets.py`); where they do not after all, nobody is blamed.
    """
    where = 0
    for group in submission.groups():
        first = group[0]
        try:
            task = asked(tasks, submission.lease, first.group, length, table)
            prompt = encode(task)
        except Exception as error:  # sources and tokenizers are foreign code, and here they fail without the file
            rule = f"group {first.group} of {submission.lease} has a task that can be asked"
            return Finding(UNSURE, rule, f"{first.source} task {first.task}", f"{type(error).__name__}: {error}", where)
        for number, sample in enumerate(group, where):
            if (sample.source, sample.task) != (task.source, task.index):
                rule = f"group {first.group} of {submission.lease} answers the task that the lease draws"
                claimed, drawn = f"{sample.source} task {sample.task}", f"{task.source} task {task.index}"
                return Finding(CHECK, rule, claimed, drawn, number)
            if not np.array_equal(sample.prompt, prompt):
                rule = f"the prompt of {task.source} task {task.index} is as the task words it"
                check = UNSURE if sample.source in on_trust else CHECK
                return Finding(check, rule, shown(sample.prompt.tolist()), shown(prompt), number)
        where += len(group)
    return None
