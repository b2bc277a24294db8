"""Scorer process: tasks are made and answers scored in a confined child with a deadline, because both may be a
stranger's.

The process holds task sources and nothing else, and whatever it does it can read nothing of the user's (`landlock.py`),
unless the tasks call for code that the user trusts. It is asked for tasks and sent answers as lines of JSON. Whatever
an answer does to it costs that answer its reward and no other one's.
"""

import math
import os
import site
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

from shoal.config import TaskConfig, TurnsConfig
from shoal.errors import TaskError
from shoal.files import cache_dir
from shoal.subproc import Child, ChildError
from shoal.tasks.build import split_up
from shoal.tasks.environments.environment import Played
from shoal.tasks.environments.host import EnvironmentHost
from shoal.tasks.files import code_of, held, is_loose, named
from shoal.tasks.isolation.broker import programs_at_once
from shoal.tasks.isolation.landlock import MAX_MEMORY, landlock_version
from shoal.tasks.isolation.sandbox import START_S
from shoal.tasks.rewards.code import TOTAL
from shoal.tasks.rewards.combine import LIVECODEBENCH, runs_programs
from shoal.tasks.source import How, Mixture, Score, Split, Task, TaskSource
from shoal.tasks.sources.filtered import layers, unfolded
from shoal.tasks.sources.remote import Remote, read_source, read_task

DEFAULT_TURNS = TurnsConfig()
SCORE_S = 5.0
# Comparing formulas ends by itself after a second of processor time, but for a multiplication without end.
MATH_S = 2.0
# All tests of a contest problem in one run (`livecodebench.MAX_SECONDS`), which are read from a large file first.
CONTEST_S = 660.0
# Importing reasoning-gym takes two seconds; drawing a task can take one.
READY_S = 120.0
MAX_ANSWER = 1 << 20
# Of a process that plays code of others, which may wait for something.
CODE_THREADS = 256
MAX_REPLY = 1 << 14
# Of all sources that tasks are made of, or of tasks that are made at once.
MAX_TASKS_REPLY = 1 << 26
# The child gets these and no others: what else is in the environment is nothing to a scorer.
PASSED_ON = ("PATH", "PYTHONPATH", "SYSTEMROOT")
# Code that is trusted with everything may look for its own files.
PASSED_ON_TO_TRUSTED = ("HOME", "XDG_CACHE_HOME")
# A set must be in the same order for worker and validator, and numbers, dates and texts in the same form: their scorers
# and environments else differ where that matters to them.
ALIKE = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# A pool of pyarrow's own would reserve more than there is.
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Scorer:
    """Owns one long-lived child that makes tasks and scores; one that fails is killed and replaced.

    Threads may share it: the child does one thing after the other.
    """

    def __init__(
        self, tasks: Sequence[TaskConfig], score_s: float | None = None, turns: TurnsConfig = DEFAULT_TURNS
    ) -> None:
        """`turns` bound the episodes of tasks that are environments."""
        self._turns = turns
        self._host: EnvironmentHost | None = None
        self._score_s = score_s or seconds_to_score(tasks)
        self._lines = list(tasks)
        readable = files_to_read(tasks)
        self._spec = {
            "tasks": [task.model_dump(mode="json") for task in tasks],
            "score_s": self._score_s,
            "readable": readable,
            "threads": 1,
            "memory": None,
        }
        names = PASSED_ON if readable is not None else PASSED_ON + PASSED_ON_TO_TRUSTED
        own = {"SHOAL_CACHE": str(cache_dir().absolute()), "PYTHONUSERBASE": site.getuserbase()}
        self._environment = {name: os.environ[name] for name in names if name in os.environ} | own
        self._sources: list[Remote] | None = None
        self._turn = threading.RLock()
        self._starting = threading.Lock()
        self._start()

    def play(self, split: Split, task: Task, actions: Sequence[str], **how: Unpack[How]) -> "Future[Played]":
        """Plays an episode in a process of its own kind, which is started when the first one is played."""
        with self._starting:
            if self._host is None:
                command = [sys.executable, "-P", "-m", "shoal.tasks.environments.host_child"]
                threads = threads_to_play(self._lines)
                memory = None if self._turns.memory_mb is None else self._turns.memory_mb << 20
                more = {"observation": self._turns.observation, "threads": threads, "memory": memory}
                environment = self._environment | ONE_THREAD | ALIKE | FRUGAL
                self._host = EnvironmentHost(command, environment, self._spec | more, self._turns, threads)
        return self._host.play(split, task, actions, **how)

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
        with self._turn:
            return self._make(asked, seconds)

    def _make(self, asked: Sequence[tuple[int, Split, int]], seconds: float) -> list[Task]:
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._child.send([*self._unsent, {"make": asked}], READY_S)
                self._meet(deadline)
                reply = self._reply(deadline)
                tasks = [read_task(one, self._known) for one in reply["tasks"]]
                if len(tasks) != len(asked):
                    raise ValueError
                self._proven = True
                return tasks
            except (KeyError, TypeError, ValueError):
                lost = "did not reply with a valid task"
            except ChildError as error:
                lost = str(error)
            fresh, words = not self._proven, self._child.last_words()
            self._replace()
            if fresh:
                raise TaskError(
                    f"its tasks cannot be made with {MAX_MEMORY >> 30} GiB of memory within {seconds:g} s: the process "
                    f"that makes them {lost}{words}"
                )

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = math.inf) -> list[Score]:
        """A reward or a named error for each answer, in order; what is not scored after so many seconds is an error."""
        done: list[Score] = []
        deadline = time.monotonic() + seconds
        while len(done) < len(answers) and time.monotonic() < deadline:
            with self._turn:
                done += self._scores(split, answers[len(done) :], deadline)
        late = Score(None, f"answers take longer than {seconds:g} s together")
        return done + [late] * (len(answers) - len(done))

    def close(self) -> None:
        self._child.close()
        if self._host is not None:
            self._host.close()
            self._host = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        # -P: nothing in the directory we happen to be in is taken for a module.
        command = [sys.executable, "-P", "-m", "shoal.tasks.rewards.scorer_child"]
        self._child = Child(command, self._environment | ONE_THREAD | ALIKE | FRUGAL)
        self._proven = False
        self._scored = 0
        self._unsent: list[object] = [self._spec]

    def _replace(self) -> None:
        self._child.close()
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
                raise ChildError("did not reply with the task sources it was given")
            self._sources = found
        self._unsent = []

    def _known(self, name: str) -> bool:
        return any(name in source.leaves for source in self._sources or ())

    def _made(self, number: int, split: Split, index: int) -> Task:
        return self.make([(number, split, index)])[0]

    def _reply(self, deadline: float) -> Any:
        """A reply that may be long; TaskError if it says that something is refused."""
        reply = self._child.receive(deadline - time.monotonic(), MAX_TASKS_REPLY)
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
            self._child.send([*self._unsent, {"split": split, "answers": texts}], READY_S)
            self._meet(time.monotonic() + READY_S)
            ready = self._child.receive(READY_S, MAX_REPLY) == "ready"
            while len(found) < len(answers):
                room_s = max(0.0, min(self._score_s, deadline - time.monotonic()))
                score, left = _score(self._child.receive(room_s, MAX_REPLY))
                if left == "none" and self._scored:
                    self._replace()  # the answers before this one may have used it up: a new child scores it again
                    return found
                found.append(score)
                self._scored += 1
                if left:
                    self._replace()
                    return found
        except ChildError as lost:
            fresh, task = not self._proven, answers[len(found)][0]
            words = "" if ready else self._child.last_words()
            self._replace()
            if ready:
                found.append(Score(None, f"{task.source} task {task.index}: scorer {lost}"))
            elif fresh:
                raise TaskError(f"{task.source} task {task.index}: its scorer {lost} before it began{words}") from None
        else:
            self._proven = True
        return found


def seconds_to_score(tasks: Sequence[TaskConfig]) -> float:
    """How long one answer may take: what a program may take for all of its tests, where programs are judged."""
    tasks = unfolded(tasks)
    if any(task.source.startswith(f"{LIVECODEBENCH}/") for task in tasks):
        return CONTEST_S
    if runs_programs(tasks):
        return (TOTAL + 1) * (max(task.code.seconds for task in tasks) + START_S)
    return MATH_S if all(task.reward == "math" for task in tasks) else SCORE_S


def threads_to_play(tasks: Sequence[TaskConfig]) -> int:
    """How many episodes of these environments are played at once: more than one where an episode may wait."""
    if any(code_of(task) for task in tasks):
        return CODE_THREADS
    return programs_at_once() if runs_programs(tasks) else 1


def files_to_read(tasks: Sequence[TaskConfig]) -> list[str] | None:
    """What a confined process must read for these tasks; None if it cannot be confined: where the tasks call for code,
    which is trusted or not run at all (`files.check_foreign`), for data that is found by name, or have no Landlock."""
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
    raise ChildError("did not reply with a valid score")
