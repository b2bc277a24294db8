"""Strangers' tasks are made once in a process of their own before anything here makes them.

A table of a few kilobytes can unfold to gigabytes, a file can end its reader, and a generator's options can ask for a
sum of a billion terms. What a process with little memory and little time can make is made again without harm, for the
same hash gives the same rows.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence

from shoal.config import TaskConfig
from shoal.errors import ShoalError, TaskError, first_line
from shoal.tasks.build import build_source
from shoal.tasks.scorer import ONE_THREAD, PASSED_ON
from shoal.tasks.source import members_of

# As much as the process has that scores: more would not be of use to it.
MEMORY = 2 << 30
TRIAL_S = 120.0
DRAWN = 4
REFUSED = 3
# A pool of pyarrow's own would reserve more than there is.
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def try_tasks(tasks: Sequence[TaskConfig], whose: str, seconds: float = TRIAL_S) -> None:
    """TaskError for tasks that take too much to be made, or cannot be. Only those that hold something are tried."""
    if not any(task.files or task.options or task.difficulty for task in tasks):
        return
    own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    lines = json.dumps([task.model_dump(mode="json") for task in tasks])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "shoal.tasks.trial"],
            input=lines.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own | ONE_THREAD | FRUGAL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TaskError(f"{whose}: its tasks are not made within {seconds:g} s; do not join it") from None
    if done.returncode == REFUSED:
        raise TaskError(f"{whose}: {done.stdout.decode(errors='replace')[-1000:]}")
    if done.returncode:
        raise TaskError(
            f"{whose}: its tasks cannot be made with {MEMORY >> 30} GiB of memory, or end who makes them "
            f"(code {done.returncode}); do not join it"
        )


def main() -> None:
    """In the process: makes the sources and a few tasks of each. Only what is said last is an answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tasks = [TaskConfig.model_validate(task) for task in json.load(sys.stdin)]
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        for source, _ in members_of(build_source(tasks)).values():
            for index in range(DRAWN):
                source.task("train", index)
    except ShoalError as error:
        print(first_line(error), file=answers, flush=True)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
