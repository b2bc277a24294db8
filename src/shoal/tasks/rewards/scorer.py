"""Scorer process: tasks are made and answers scored in a confined child with a deadline, because both may be a
stranger's.

The process holds task sources and nothing else, and whatever it does it can read nothing of the user's (`confine.py`),
unless the tasks call for code that the user trusts. It is asked for tasks and sent answers as lines of JSON. Whatever
an answer does to it costs that answer its reward and no other one's.
"""

import json
import math
import os
import select
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.files import cache_dir, parse_json
from shoal.tasks.build import split_up
from shoal.tasks.files import code_of, held, is_loose, named
from shoal.tasks.isolation.landlock import MAX_MEMORY, landlock_version
from shoal.tasks.isolation.sandbox import START_S
from shoal.tasks.rewards.code import TOTAL
from shoal.tasks.rewards.combine import runs_programs
from shoal.tasks.source import Mixture, Score, Split, Task, TaskSource
from shoal.tasks.sources.filtered import layers, unfolded
from shoal.tasks.sources.remote import Remote, read_source, read_task

SCORE_S = 5.0
# Comparing formulas ends by itself after a second of processor time, but for a multiplication without end.
MATH_S = 2.0
# Importing reasoning-gym takes two seconds; drawing a task can take one.
READY_S = 120.0
MAX_ANSWER = 1 << 20
MAX_REPLY = 1 << 14
# Of all sources that tasks are made of, or of tasks that are made at once.
MAX_TASKS_REPLY = 1 << 26
# The child gets these and no others: what else is in the environment is nothing to a scorer.
PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT")
# Code that is trusted with everything may look for its own files.
PASSED_ON_TO_TRUSTED = ("HOME", "XDG_CACHE_HOME")
# A set must be in the same order for worker and validator, whose scorers else differ where that matters to them.
ONE_ORDER = {"PYTHONHASHSEED": "0"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# A pool of pyarrow's own would reserve more than there is.
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class _Lost(Exception):
    """The child did not do what was asked, and cannot be relied on any more."""


class Scorer:
    """Owns one long-lived child that makes tasks and scores; one that fails is killed and replaced."""

    def __init__(self, tasks: Sequence[TaskConfig], score_s: float | None = None) -> None:
        self._score_s = score_s or seconds_to_score(tasks)
        self._lines = list(tasks)
        readable = files_to_read(tasks)
        self._spec = {
            "tasks": [task.model_dump(mode="json") for task in tasks],
            "score_s": self._score_s,
            "readable": readable,
        }
        names = PASSED_ON if readable is not None else PASSED_ON + PASSED_ON_TO_TRUSTED
        own = {"SHOAL_CACHE": str(cache_dir().absolute()), "PYTHONUSERBASE": site.getuserbase()}
        self._environment = {name: os.environ[name] for name in names if name in os.environ} | own
        self._sources: list[Remote] | None = None
        self._start()

    @property
    def tasks(self) -> TaskSource:
        """The tasks, as the child makes them; TaskError if it cannot. They are scored by this scorer alone."""
        if self._sources is None:
            self.make([])
        assert self._sources is not None
        if len(self._sources) == 1:
            return self._sources[0]
        return Mixture(self._sources, [part.weight for part in split_up(self._lines)])

    def make(self, asked: Sequence[tuple[int, Split, int]], seconds: float = READY_S) -> list[Task]:
        """Tasks of the child's sources, by the number of the source."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._send([*self._unsent, {"make": asked}])
                self._meet(deadline)
                reply = self._reply(deadline)
                tasks = [read_task(one, self._known) for one in reply["tasks"]]
                if len(tasks) != len(asked):
                    raise ValueError
                self._proven = True
                return tasks
            except (KeyError, TypeError, ValueError):
                lost = "said what is no task"
            except _Lost as error:
                lost = str(error)
            fresh = not self._proven
            self._replace()
            if fresh:
                raise TaskError(
                    f"its tasks cannot be made with {MAX_MEMORY >> 30} GiB of memory within {seconds:g} s: the process "
                    f"that makes them {lost}"
                )

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        """A reward or a named error for each answer, in order; what is not scored after so many seconds is an error."""
        done: list[Score] = []
        deadline = time.monotonic() + seconds
        while len(done) < len(answers) and time.monotonic() < deadline:
            done += self._scores(split, answers[len(done) :], deadline)
        late = Score(None, f"answers take longer than {seconds:g} s together")
        return done + [late] * (len(answers) - len(done))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            # -P: nothing in the directory we happen to be in is taken for a module.
            [sys.executable, "-P", "-m", "shoal.tasks.rewards.scorer_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment | ONE_THREAD | ONE_ORDER | FRUGAL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        self._pending = b""
        self._proven = False
        self._scored = 0
        self._unsent: list[object] = [self._spec]

    def _replace(self) -> None:
        self.close()
        self._start()

    def _meet(self, deadline: float) -> None:
        """Hears what sources a new child has."""
        if not self._unsent:
            return
        reply = self._reply(deadline)
        if self._sources is None:
            try:
                found = [read_source(one, number, self._made) for number, one in enumerate(reply["sources"])]
            except (KeyError, TypeError, ValueError):
                found = []
            if len(found) != len(split_up(self._lines)):
                raise _Lost("said what are no sources")
            self._sources = found
        self._unsent = []

    def _known(self, name: str) -> bool:
        return any(name in source.leaves for source in self._sources or ())

    def _made(self, number: int, split: Split, index: int) -> Task:
        return self.make([(number, split, index)])[0]

    def _reply(self, deadline: float) -> Any:
        """A reply that may be long; TaskError if it says that something is refused."""
        reply = self._receive(deadline - time.monotonic(), MAX_TASKS_REPLY)
        match reply:
            case {"refused": str() as reason}:
                if self._unsent:
                    self._replace()  # it has ended
                raise TaskError(reason)
        return reply

    def _scores(self, split: Split, answers: Sequence[tuple[Task, str]], deadline: float) -> list[Score]:
        """Scores of the first answers: of all, or up to the one that the child was lost with or grew too large with."""
        texts = [[task.source, task.index, answer[: MAX_ANSWER + 1]] for task, answer in answers]
        found: list[Score] = []
        ready = False
        try:
            self._send([*self._unsent, {"split": split, "answers": texts}])
            self._meet(time.monotonic() + READY_S)
            ready = self._receive(READY_S) == "ready"
            while len(found) < len(answers):
                score, left = _score(self._receive(max(0.0, min(self._score_s, deadline - time.monotonic()))))
                if left == "none" and self._scored:
                    self._replace()  # the answers before this one may have used it up: a new child scores it again
                    return found
                found.append(score)
                self._scored += 1
                if left:
                    self._replace()
                    return found
        except _Lost as lost:
            fresh, task = not self._proven, answers[len(found)][0]
            self._replace()
            if ready:
                found.append(Score(None, f"{task.source} task {task.index}: scorer {lost}"))
            elif fresh:
                raise TaskError(f"{task.source} task {task.index}: its scorer {lost} before it began") from None
        else:
            self._proven = True
        return found

    def _send(self, messages: Sequence[object]) -> None:
        left = memoryview(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        while left:
            if not poll.poll(READY_S * 1000):
                raise _Lost(f"took no answers for {READY_S:.0f} s")
            try:
                left = left[os.write(self._to, left[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Lost(self._end()) from None

    def _receive(self, seconds: float, most: int = MAX_REPLY) -> Any:
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while b"\n" not in self._pending:
            if len(self._pending) > most:
                raise _Lost(f"said more than {most} bytes")
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _Lost(f"took longer than {seconds:g} s")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise _Lost(self._end())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            return parse_json(line)
        except (ValueError, RecursionError):
            raise _Lost("said what is not JSON") from None

    def _end(self) -> str:
        """How the child ended, in words."""
        try:
            code = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def seconds_to_score(tasks: Sequence[TaskConfig]) -> float:
    """How long one answer may take: what a program may take for all of its tests, where programs are judged."""
    tasks = unfolded(tasks)
    if runs_programs(tasks):
        return (TOTAL + 1) * (max(task.code.seconds for task in tasks) + START_S)
    return MATH_S if all(task.reward == "math" for task in tasks) else SCORE_S


def files_to_read(tasks: Sequence[TaskConfig]) -> list[str] | None:
    """What a confined process must read for these tasks; None if it cannot be confined: where the tasks call for code,
    which is trusted or not run at all (`kept.check_foreign`), for data that is found by name, or have no Landlock."""
    lines = [line for layer in layers(tasks, "tasks") for line in layer]
    if not landlock_version() or any(code_of(line) or is_loose(line) for line in lines):
        return None
    return [str(held(name, line.files).resolve()) for line in lines for name in named(line)]


def _score(reply: Any) -> tuple[Score, str]:
    """A score, and how much memory its child has left, if that is little or none."""
    match reply:
        case [float() as reward, "", dict() as parts, bool() as doubtful, str() as left] if math.isfinite(reward):
            if all(isinstance(value, float | int) and math.isfinite(value) for value in parts.values()):
                return Score(reward, "", {str(name): float(value) for name, value in parts.items()}, doubtful), left
        case [None, str() as error, _, _, str() as left] if error:
            return Score(None, error), left
    raise _Lost("said what is no score")
