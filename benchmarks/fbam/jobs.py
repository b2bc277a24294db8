"""Trainings in processes of one thread each, two at a time; an answer that is on disk is not computed again."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import IO, Any

from benchmarks import ROOT
from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from shoal.errors import BenchError
from shoal.fbam.training.settings import TrainSettings
from shoal.process import role_environment

SIDE_BY_SIDE = 2
MAX_STDERR_LINES = 20
MAX_SILENCE_S = 900.0
LAST_WORDS_S = 10.0  # to read what a process that has ended said

Answer = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and what its process is asked of the weights after the last step."""

    name: str
    module: str
    """Of the process: it reads settings and questions as JSON, and prints numbers by name."""
    settings: TrainSettings
    questions: Mapping[str, Any]

    def told(self) -> dict[str, Any]:
        return {"settings": self.settings.model_dump(mode="json"), **self.questions}

    def asked(self) -> dict[str, Any]:
        """What decides the answer. Where a recording is stored does not: its hash is among the settings."""
        told = self.told()
        return {**told, "settings": {**told["settings"], "recording": None}}


def run_jobs(jobs: Sequence[Job], parts: Parts, progress: Progress) -> dict[str, Answer]:
    """Answers by the names of jobs."""
    finished = count(1)

    def run(job: Job) -> tuple[str, Answer]:
        answer, seconds = _run(job, parts, progress)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in answer.items())
        took = "kept" if seconds is None else f"{seconds:.0f} s"
        progress.done(f"{next(finished)} of {len(jobs)}: {job.name}: {shown} ({took})")
        return job.name, answer

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(pool.map(run, jobs))


def _run(job: Job, parts: Parts, progress: Progress) -> tuple[Answer, float | None]:
    """The answer and how long it took; None if it was on disk."""
    kept = parts.find(job.name, job.asked())
    if kept is not None:
        return kept, None
    began = time.monotonic()
    checkpoint = parts.checkpoint(job.name, job.asked())
    told = {**job.told(), "checkpoint": checkpoint and str(checkpoint)}
    answer = ask_child(job.module, told, lambda line: progress.detail(f"{job.name}: {line}"))
    parts.keep(job.name, job.asked(), answer)
    return answer, time.monotonic() - began


def ask_child(
    module: str,
    told: object,
    tell: Callable[[str], None] = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Runs a module in a fresh process with one thread: JSON goes in and comes out, lines on stderr are passed on.

    Question and answer are files: a process that ends at once leaves its error, not a broken pipe. One that is silent
    for MAX_SILENCE_S is ended; trainings tell how far they are every few seconds, however long they take.
    """
    heard = Heard(module, tell)
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as answered:
        json.dump(told, asked)
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=asked,
            stdout=answered,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**role_environment(1), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        )
        reader = threading.Thread(target=heard.listen, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            heard.wait_for(process)
        finally:
            process.kill()
            process.wait()
            reader.join(LAST_WORDS_S)
        if process.returncode != 0:
            raise BenchError(f"{module}: {heard.last_words()}")
        answered.seek(0)
        answer: dict[str, float] = json.load(answered)
        return answer


class Heard:
    """What a process said on stderr, and when it last did."""

    def __init__(self, module: str, tell: Callable[[str], None]) -> None:
        self.module, self._tell = module, tell
        self._lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._last = time.monotonic()

    def listen(self, stderr: IO[str]) -> None:
        """Passes lines on until the process closes its stderr."""
        with stderr:
            for line in stderr:
                self._lines.append(line.strip())
                self._last = time.monotonic()
                self._tell(line.strip())

    def last_words(self) -> str:
        return " ".join(self._lines)[-500:]

    def wait_for(self, process: subprocess.Popen[str]) -> None:
        """Until the process ends; BenchError if it is silent for too long."""
        while (left := self._last + MAX_SILENCE_S - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                process.wait(left)
                return
        raise BenchError(
            f"{self.module}: silent for {MAX_SILENCE_S:g} s, so it was ended; the last it said: {self.last_words()}"
        )
