"""Scoring in a process of its own, with a deadline: an answer may come from a stranger, and a scorer may never return.

The process holds task sources and nothing else. It draws the tasks itself, for they follow from the config, and is sent
answers as lines of JSON. Whatever an answer does to it costs that answer its reward and no other one's.
"""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.files import parse_json
from shoal.tasks.coding import TOTAL
from shoal.tasks.filtered import unfolded
from shoal.tasks.rewards import runs_programs
from shoal.tasks.sandbox import START_S
from shoal.tasks.source import Score, Split, Task

SCORE_S = 5.0
# Comparing formulas ends by itself after a second of processor time, but for a multiplication without end.
MATH_S = 2.0
# Importing reasoning-gym takes two seconds; drawing a task can take one.
READY_S = 120.0
MAX_ANSWER = 1 << 20
MAX_REPLY = 1 << 14
# The child gets these and no others: what else stands in the environment is nothing to a scorer.
PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT", "HOME", "SHOAL_CACHE", "XDG_CACHE_HOME")
# A set must be in the same order for worker and validator, whose scorers else differ where that matters to them.
ONE_ORDER = {"PYTHONHASHSEED": "0"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Lost(Exception):
    """The child did not do what was asked, and cannot be relied on any more."""


class Scorer:
    """Owns one long-lived child that scores; one that fails is killed, replaced, and goes on with the next answer."""

    def __init__(self, tasks: Sequence[TaskConfig], score_s: float | None = None) -> None:
        score_s = score_s or seconds_to_score(tasks)
        self._spec = {"tasks": [task.model_dump(mode="json") for task in tasks], "score_s": score_s}
        self._score_s = score_s
        self._start()

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
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._child = subprocess.Popen(
            # -P: nothing in the directory we happen to be in is taken for a module.
            [sys.executable, "-P", "-m", "shoal.tasks.scorer_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | ONE_THREAD | ONE_ORDER,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        self._pending = b""
        self._proven = False
        self._unsent = [self._spec]

    def _scores(self, split: Split, answers: Sequence[tuple[Task, str]], deadline: float) -> list[Score]:
        """Scores of the first answers: of all, or up to the one that the child was lost with."""
        texts = [[task.source, task.index, answer[: MAX_ANSWER + 1]] for task, answer in answers]
        found: list[Score] = []
        ready = False
        try:
            self._send([*self._unsent, {"split": split, "answers": texts}])
            self._unsent = []
            ready = self._receive(READY_S) == "ready"
            while len(found) < len(answers):
                found.append(_score(self._receive(max(0.0, min(self._score_s, deadline - time.monotonic())))))
        except _Lost as lost:
            fresh, task = not self._proven, answers[len(found)][0]
            self.close()
            self._start()
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

    def _receive(self, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while b"\n" not in self._pending:
            if len(self._pending) > MAX_REPLY:
                raise _Lost(f"said more than {MAX_REPLY} bytes")
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


def _score(reply: Any) -> Score:
    match reply:
        case [float() as reward, "", dict() as parts, bool() as doubtful] if math.isfinite(reward):
            return Score(reward, "", {str(name): float(value) for name, value in parts.items()}, doubtful)
        case [None, str() as error, *_] if error:
            return Score(None, error)
    raise _Lost("said what is no score")
