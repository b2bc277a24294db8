"""Trainings in processes of one thread each, two at a time: how accurate a model is by length after its last step."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks import ROOT
from benchmarks.common.progress import Progress
from shoal.errors import BenchError
from shoal.fbam.training.settings import TrainSettings
from shoal.process import role_environment

SIDE_BY_SIDE = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and the lengths that its last weights are evaluated at."""

    name: str
    settings: TrainSettings
    lengths: tuple[int, ...]
    sequences: int = 1024


Accuracies = dict[int, float]


def run_jobs(jobs: Sequence[Job], progress: Progress) -> dict[str, Accuracies]:
    """Accuracy at the last frame, by the name of the job and by length."""
    done = 0

    def tell(job: Job) -> tuple[str, Accuracies]:
        nonlocal done
        found = _run(job)
        done += 1
        shown = ", ".join(f"{accuracy:.3f} at {length}" for length, accuracy in found.items())
        progress.detail(f"{done} of {len(jobs)}: {job.name}: {shown}")
        return job.name, found

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(pool.map(tell, jobs))


def _run(job: Job) -> Accuracies:
    told = {"settings": job.settings.model_dump(mode="json"), "lengths": job.lengths, "sequences": job.sequences}
    answer = ask_child("benchmarks.fbam.train_child", told)
    return {int(length): accuracy for length, accuracy in answer.items()}


def ask_child(module: str, told: object) -> dict[str, float]:
    """Runs a module in a fresh process with one thread: JSON goes in and comes out."""
    result = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=role_environment(1) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if result.returncode != 0:
        raise BenchError(f"{module}: {result.stderr.strip()[-500:]}")
    answer: dict[str, float] = json.loads(result.stdout)
    return answer
