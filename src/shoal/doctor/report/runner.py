"""Runs the steps one after the other, each in a process with a deadline: no step can end another, or the report."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.config import RunConfig
from shoal.doctor.report.child import RESULT
from shoal.doctor.report.plan import Step
from shoal.doctor.report.report_file import StepResult
from shoal.errors import ConfigError
from shoal.protocol.rates.rates_file import RatesFile

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What all steps have in common."""

    config: RunConfig
    model: Path
    device: str
    log: Path | None = None
    """Where the steps' own output goes; None: nowhere."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A step's result, and the rates that it left behind."""

    result: StepResult
    rates: RatesFile | None = None


def run_steps(steps: Sequence[Step], job: Job) -> Iterator[Ran]:
    """Each step's result as soon as it is there."""
    for step in steps:
        yield _run(step, job)


def _run(step: Step, job: Job) -> Ran:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-report-", ignore_cleanup_errors=True) as scratch:
        ended = _in_child(step, job, Path(scratch))
        seconds = round(time.monotonic() - began, 2)
        try:
            told = json.loads((Path(scratch) / RESULT).read_text()) if ended == "" else None
        except (OSError, ValueError):
            told, ended = None, "ended without a result"
        if told is None:
            return Ran(StepResult(name=step.name, status="failed", seconds=seconds, reason=ended))
        rates = None
        with suppress(ConfigError):
            rates = RatesFile.read(Path(scratch) / "rates.json")
        return Ran(StepResult(name=step.name, seconds=seconds, **told), rates)


def _in_child(step: Step, job: Job, scratch: Path) -> str:
    """Runs the step's process; how it ended if that was not well."""
    task = {
        "module": step.module,
        "config": job.config.model_dump(mode="json"),
        "model": str(job.model),
        "device": job.device,
        "scratch": str(scratch),
    }
    command = [sys.executable, "-m", "shoal.doctor.report.child"]
    with Path(job.log or os.devnull).open("ab") as log:
        # A session of its own: what the step started ends with it.
        env = {**os.environ, **(step.on_cpu if job.device == "cpu" else {})}
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        )
        assert child.stdin is not None
        try:
            # The pipe stays open: the step ends when it closes, which it does however this process ends.
            child.stdin.write(json.dumps(task).encode() + b"\n")
            child.stdin.flush()
            child.wait(step.seconds)
        except BrokenPipeError:
            child.wait()
        except subprocess.TimeoutExpired:
            return f"took longer than {step.seconds:.0f} s and was ended"
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            with suppress(BrokenPipeError):
                child.stdin.close()
    if child.returncode < 0:
        return f"crashed: killed by {signal.Signals(-child.returncode).name}"
    return f"crashed: ended with code {child.returncode}" if child.returncode else ""
