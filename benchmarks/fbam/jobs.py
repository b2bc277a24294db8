"""Trainings in processes of one thread each, two at a time; an answer that is on disk is not computed again."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    """Runs a module in a fresh process with one thread: JSON goes in and comes out, lines on stderr are passed on."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**role_environment(1), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(process.stderr, lines, tell), daemon=True)
    reader.start()
    with process:
        try:
            with process.stdin as stdin:
                json.dump(told, stdin)
            said = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    reader.join()
    if process.returncode != 0:
        raise BenchError(f"{module}: {' '.join(lines)[-500:]}")
    answer: dict[str, float] = json.loads(said)
    return answer


def _pass_on(stderr: IO[str], lines: list[str], tell: Callable[[str], None]) -> None:
    for line in stderr:
        lines.append(line.strip())
        del lines[:-MAX_STDERR_LINES]
        tell(line.strip())
