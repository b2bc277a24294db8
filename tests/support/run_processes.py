"""A small real run as processes: its config, its start, and what it learned."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from shoal.telemetry.metrics import read_steps
from shoal.telemetry.status import ENDED, read_status
from tests.support.until import until

STEPS = 30
CONFIG = f"""
name = "small"
steps = {STEPS}
async_level = 2

[[tasks]]
source = "reasoning-gym/spell_backward"
options = {{ min_word_len = 3, max_word_len = 4 }}
binary = false

[model.tiny]
hidden = 64
layers = 2
warm_steps = 60

[sampling]
group_size = 8
max_new_tokens = 8
max_prompt_tokens = 64

[train]
groups_per_step = 12
lr = 1e-4
warmup_steps = 5
old_logprobs = "sampled"
checkpoint_every = 2

[train.loss]
kl_coef = 0.0

[workers]
count = 2
groups_per_submission = 4

[eval]
tasks = 32
every = 15
"""


# The same run, as small as it gets: where it matters that files are made and judged, and not what is learned.
SMALLEST = [
    "--set=model.tiny.hidden=32",
    "--set=model.tiny.layers=1",
    "--set=model.tiny.warm_steps=0",
    "--set=train.groups_per_step=4",
    "--set=workers.count=1",
    "--set=workers.groups_per_submission=2",
    "--set=eval.every=1000",
    "--set=steps=1000",
]


@contextmanager
def own_worker_stopped(out: Path, wait_s: float) -> Iterator[None]:
    """Stops the run's own worker, so that all work and all CPUs are left to a machine that joins."""

    def worker() -> list[int]:
        return [status.pid for status in read_status(out) if status.role == "worker-0" and status.state not in ENDED]

    until(worker, wait_s)
    (pid,) = worker()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Runs:
    """Starts `shoal run` in the background; no run outlives the `with`."""

    def __init__(self, cache: Path) -> None:
        self.env = {**os.environ, "SHOAL_CACHE": str(cache)}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, config: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
        """What it prints goes to a log beside the directory of the run."""
        command = [sys.executable, "-m", "shoal", "run", str(config), "--out", str(out), *options]
        with (out.parent / f"{out.name}.log").open("ab") as log:
            self.started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=self.env))
        return self.started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.started:
            run.kill()
            run.wait()


def reward_at(out: Path, step: int) -> float:
    """The mean reward of the ten steps before `step`: of 96 samples and more each, so its standard error is 0.02.

    A trainer that was killed between a step's checkpoint and its metrics leaves no line of that step.
    """
    entries = read_steps(out / "metrics" / "trainer.jsonl", "step")
    rewards = [float(entry["reward"]) for entry in entries if step - 10 <= int(entry["step"]) < step]
    assert len(rewards) >= 5
    return sum(rewards) / len(rewards)
