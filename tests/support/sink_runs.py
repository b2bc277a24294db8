"""Run directories to feed to sinks: a config and metrics files, and stand-ins for packages that misbehave."""

import time
from pathlib import Path
from random import Random
from typing import Any

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.rundir import RunDir, write_run_file
from tests.watch.conftest import step_values

EVERY = 5
TREE: dict[str, Any] = {"name": "fed", "steps": 40, "tasks": [{"source": "reasoning-gym/spell_backward"}]}


def make_config(**tables: Any) -> RunConfig:
    return check_config(TREE | tables, "test")


def write_run(path: Path, steps: int, **config: Any) -> RunDir:
    """A run of so many steps, with a worker, a validator and an evaluator, as its roles write it."""
    run = RunDir(path, make_config(**config))
    path.mkdir(parents=True, exist_ok=True)
    write_run_file(path, run.config, 1_790_000_000.0)
    with run.metrics("supervisor") as supervisor:
        supervisor.write("start", total_steps=run.config.steps)
    for step in range(steps):
        write_step(run, step)
    return run


def write_step(run: RunDir, step: int, **changes: object) -> None:
    """What the roles write about one step."""
    with run.metrics("worker-0") as worker, run.metrics("validator") as validator:
        for number in range(2):
            place = {"step": step, "submission": number}
            worker.write(
                "submission", **place, tokens=300, samples=8, tokens_per_s=50.0, wait_share=0.25, scorer_errors=1
            )
            check = "sampling" if number else ""
            validator.write("verdict", **place, node="0xab", accept=number == 0, check=check, cpu_s=0.5)
    with run.metrics("trainer") as trainer:
        trainer.write("step", **step_values(step, Random(step)) | changes)
    if step % EVERY == 0:
        with run.metrics("evaluator") as evaluator:
            evaluator.write("eval", version=step, step=step, tasks=200, pass_at_1=0.5, low=0.4, high=0.6)


def files_of(path: Path) -> dict[str, bytes]:
    """Every file of a run but the sinks' own and logs."""
    found = sorted(file for file in path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in found
        if file.relative_to(path).parts[0] not in ("sinks", "logs")
    }


def bad_package(folder: Path, how: str, name: str = "wandb") -> Path:
    """A package that hangs, raises or ends its process as soon as a row comes, in a folder for PYTHONPATH."""
    body = {
        "hangs": "import time; time.sleep(3600)",
        "raises": "raise RuntimeError('no route to the server')",
        "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "exits": "import os; os._exit(7)",
    }[how]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(
        f"""
class Settings:
    def __init__(self, **_): pass

class Run:
    def define_metric(self, *_, **__): pass
    def log(self, row, **_):
        {body}
    def finish(self): pass

def init(**_):
    return Run()
"""
    )
    return folder


def wait_for_rows(file: Path, count: int, within_s: float = 120.0) -> list[str]:
    """The lines of a file once it has so many."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if file.exists() and len(lines := file.read_text().splitlines()) >= count:
            return lines
        time.sleep(0.05)
    raise AssertionError(f"{file} has {file.read_text() if file.exists() else 'nothing'}, {count} lines were expected")
