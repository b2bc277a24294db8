"""Single parts of the benchmarks `fbam` and `fbam-length`, for a machine that has to be shared.

Usage: `python -m benchmarks.fbam.part DIR [NAME ...]`. Without names all trainings are listed, with whether their
answer is kept; with names these are trained, one after the other. `error`, `memory`, `time` and `replay`
are measured without training. `python -m benchmarks fbam --out DIR` then finds what is kept.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.common.parts import Parts
from benchmarks.common.progress import Progress
from benchmarks.fbam.bench import MEASURES, measure_part
from benchmarks.fbam.depth import depth_jobs
from benchmarks.fbam.jobs import Job, run_jobs
from benchmarks.fbam.length_law import Plan, history_file, length_jobs
from benchmarks.fbam.rates import rate_jobs
from shoal.errors import BenchError
from shoal.fbam.recording import read_recording


def task_jobs() -> dict[str, Job]:
    """Trainings on tasks by name."""
    return {job.name: job for job in (*rate_jobs(), *depth_jobs(quick=False))}


def recording_jobs(directory: Path) -> dict[str, Job]:
    """Trainings on a git history by name; it is recorded into the directory if it is not there."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-fbam-") as scratch:
        _, file = history_file(Plan(), Path(scratch), directory)
    return {job.name: job for job in length_jobs(Plan(), read_recording(file), file).values()}


def chosen_jobs(directory: Path, names: Sequence[str]) -> list[Job]:
    """The named trainings, or all."""
    jobs = task_jobs()
    if not names or any(name not in jobs for name in names):
        jobs |= recording_jobs(directory)
    unknown = [name for name in names if name not in jobs]
    if unknown:
        raise BenchError(f"training {unknown[0]}: unknown; without a name all are listed")
    return [jobs[name] for name in names or jobs]


def main(directory: Path, names: Sequence[str]) -> None:
    parts = Parts(directory)
    if not names:
        for job in chosen_jobs(directory, ()):
            sys.stdout.write(f"{'done' if parts.find(job.name, job.asked()) else 'open'}  {job.name}\n")
        return
    trained = [name for name in names if name not in MEASURES]
    with Progress(Console(stderr=True)) as progress:
        for name in [name for name in names if name in MEASURES]:
            measure_part(name, False, parts, progress)
        for job in chosen_jobs(directory, trained) if trained else ():
            run_jobs([job], parts, progress)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m benchmarks.fbam.part DIR [NAME ...]")
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
