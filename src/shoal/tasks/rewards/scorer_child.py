"""Child side of the scorer: drops privileges, then makes tasks and scores answers.

It ends when its parent does: then there is nothing more to read, and a score that is under way is cut off by an alarm
that the kernel delivers even in the middle of a single long multiplication.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from shoal.config import TaskConfig
from shoal.errors import ShoalError, TaskError
from shoal.subproc import say
from shoal.tasks.build import build_source
from shoal.tasks.files import is_foreign
from shoal.tasks.isolation.broker import programs_at_once, start_brokers
from shoal.tasks.isolation.landlock import FOREIGN_MEMORY, MAX_MEMORY, confine, limit, limit_foreign
from shoal.tasks.rewards.combine import runs_programs
from shoal.tasks.rewards.scorer import MAX_ANSWER
from shoal.tasks.source import (
    Score,
    TaskSource,
    content_of,
    leaves_of,
    members_of,
    part_of,
    score_in_memory,
    scorer_error,
    size_of,
)
from shoal.tasks.sources.filtered import unfolded

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
MAX_REFUSAL = 1000
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Begun:
    """A child that has its tasks and nothing else any more."""

    requests: IO[bytes]
    replies: IO[bytes]
    spec: dict[str, Any]
    source: TaskSource
    memory: "Memory"


def main() -> None:
    if (begun := begin()) is None:
        return
    source, replies = begun.source, begun.replies
    sources = [member for member, _ in members_of(source).values()]
    say(replies, {"sources": [_described(member) for member in sources]})
    begun.memory.begin()
    for line in begun.requests:
        request = json.loads(line)
        if "make" in request:
            make(request["make"], sources, replies)
        else:
            serve(request, source, begun.spec["score_s"], replies, begun.memory)


def begin(start_threads: Callable[[int], None] = lambda _: None) -> Begun | None:
    """Reads what is asked of this process and gives up the rest, starting as many threads as it is told before.

    None if there is nothing to do: nobody asks, or the tasks are refused, which the parent then knows.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a scorer prints must not be read as a reply
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nor is a request what it is typed, nor closed by its `exit()`
    os.close(nothing)
    if not (first := requests.readline()):
        return None  # who started this was killed before it said anything
    spec = json.loads(first)
    tasks = [TaskConfig.model_validate(task) for task in spec["tasks"]]
    room = spec["memory"] or (FOREIGN_MEMORY if is_any_foreign(tasks) else MAX_MEMORY)
    memory, threads = Memory(room), spec["threads"]
    try:
        if runs_programs(tasks) and (spec["readable"] is not None or threads > 1):
            start_brokers(min(threads, programs_at_once()))
        if spec["readable"] is not None:
            source = confined(tasks, spec["readable"], partial(start_threads, threads), room)
        else:
            source = trusted(tasks, partial(start_threads, threads), room)
    except ShoalError as error:
        say(replies, {"refused": str(error)[:MAX_REFUSAL]})
        for _ in requests:
            pass  # until the parent has read that
        return None
    return Begun(requests, replies, spec, source, memory)


def confined(
    tasks: Sequence[TaskConfig], readable: Sequence[str], start_threads: Callable[[], None], memory: int
) -> TaskSource:
    """The sources, built when nothing else can be read any more: files and generators may be a stranger's choice."""
    if any(task.source.startswith("reasoning-gym/") for task in unfolded(tasks)):
        from shoal.tasks.sources.gym.package import import_gym

        import_gym()  # it imports matplotlib, which looks for a place to write
    if any(task.source.startswith("ifeval/") for task in unfolded(tasks)):
        from shoal.tasks.sources.exams.words import load

        with suppress(TaskError):  # which the source raises again if its questions need what is missing
            load(punkt=True)  # the files that tasks name do not include its model of sentences
    silence()
    confine(map(Path, readable), start_threads, memory)
    try:
        return build_source(tasks)
    except (ShoalError, MemoryError):
        raise
    except Exception as error:  # libraries raise what they please on a stranger's files and options
        raise TaskError(f"tasks cannot be built: {type(error).__name__}: {error}") from error


def trusted(tasks: Sequence[TaskConfig], start_threads: Callable[[], None], memory: int) -> TaskSource:
    """The sources, with code that is trusted with all that the user can do, or on a system that confines nothing."""
    # A sandbox needs processes and namespaces, which a process that has given them up can no longer create.
    sandboxes, foreign = runs_programs(tasks), is_any_foreign(tasks)
    if not sandboxes and not foreign:
        leave_network()
    source = build_source(tasks)
    start_threads()
    limit_foreign(memory) if foreign else limit(memory, processes=sandboxes)
    silence()
    return source


def is_any_foreign(tasks: Sequence[TaskConfig]) -> bool:
    return any(is_foreign(task.source) for task in tasks)


def make(asked: Sequence[Any], sources: Sequence[TaskSource], replies: IO[bytes]) -> None:
    """One line with all tasks that are asked for, or with why they cannot be made."""
    try:
        tasks = [sources[number].task(split, index) for number, split, index in asked]
    except ShoalError as error:
        say(replies, {"refused": str(error)[:MAX_REFUSAL]})
        return
    said = [[task.source, task.index, task.prompt, task.answer, task.system, task.prefill] for task in tasks]
    say(replies, {"tasks": said})


def serve(request: Any, source: TaskSource, score_s: float, replies: IO[bytes], memory: "Memory") -> None:
    """One line for having drawn the tasks, then one for each answer as soon as it is scored."""
    tasks = [part_of(source, name).task(request["split"], index) for name, index, _ in request["answers"]]
    say(replies, "ready")
    for task, (_, index, answer) in zip(tasks, request["answers"], strict=True):
        short = False
        if len(answer) > MAX_ANSWER:
            error = f"{task.source} task {index}: answer of more than {MAX_ANSWER} characters, which nobody scores"
            result = Score(None, error)
        else:
            signal.setitimer(signal.ITIMER_REAL, score_s + 1)
            try:
                result = score_in_memory(source, task, answer)
            except MemoryError as error:
                short, result = True, Score(None, scorer_error(task, error))
            signal.setitimer(signal.ITIMER_REAL, 0)
        left = "none" if short else "little" if memory.is_little() else ""
        say(replies, [result.reward, result.error, dict(result.parts), result.doubtful, left])


class Memory:
    """How much of what this process may have is left: an answer must not find it used up by those before it."""

    def __init__(self, room: int = MAX_MEMORY) -> None:
        # Opened before it is too late to open anything.
        self._counts = os.open("/proc/self/statm", os.O_RDONLY) if sys.platform == "linux" else None
        self._room = self._max_memory = room

    def begin(self) -> None:
        """From now on half of what is free may be taken for good."""
        self._max_memory = (self._taken() + self._room) // 2

    def is_little(self) -> bool:
        return self._taken() > self._max_memory

    def _taken(self) -> int:
        return int(os.pread(self._counts, 100, 0).split()[0]) * PAGE if self._counts is not None else 0


def silence() -> None:
    """From now on nothing is told to a terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def leave_network() -> None:
    """Moves into a network of its own with nothing in it, on Linux kernels that let anyone do so."""
    if sys.platform == "linux":
        unshare = ctypes.CDLL(None).unshare
        _ = unshare(CLONE_NEWUSER | CLONE_NEWNET) and unshare(CLONE_NEWNET)


def _described(source: TaskSource) -> dict[str, Any]:
    sizes = {split: size_of(source, split) for split in ("train", "heldout")}
    return {"name": source.name, "leaves": leaves_of(source), "sha256": content_of(source)} | sizes


if __name__ == "__main__":
    main()
