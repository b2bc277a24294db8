"""A run directory such as forty steps of two workers leave behind, with the dents a real one has."""

import fcntl
import json
import math
import os
import time
from pathlib import Path
from random import Random
from typing import IO

import pytest

from shoal.telemetry.metrics import Entry, MetricsWriter

STEPS = 40


def append(path: Path, *entries: Entry) -> None:
    """Lines as a role wrote them at another time, which `MetricsWriter` would stamp with now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


HELD: list[IO[str]] = []


def hold_lock(run_dir: Path, role: str) -> None:
    """As the role's own process does as long as it lives."""
    path = run_dir / "locks" / role
    path.parent.mkdir(exist_ok=True)
    HELD.append(path.open("w"))
    fcntl.flock(HELD[-1], fcntl.LOCK_EX)


def put_status(run_dir: Path, role: str, *, alive: bool = True, **changes: object) -> None:
    now = time.time()
    status = {"role": role, "pid": os.getpid(), "state": "working", "doing": "", "on": "", "since": now}
    path = run_dir / "status" / f"{role}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(status | {"deadline": None, "beat": now} | changes))
    if alive:
        hold_lock(run_dir, role)


def step_values(step: int, rng: Random) -> dict[str, object]:
    learnt = 1 / (1 + math.exp(-(step - 14) / 5))
    solved = min(1.0, 0.32 + 0.57 * learnt + rng.gauss(0, 0.025))
    return {
        "step": step,
        "version": step + 1,
        "reward": solved - 0.04,
        "solve_rate": solved,
        "completion_tokens_mean": 21 + 9 * learnt + rng.gauss(0, 0.6),
        "entropy": 0.85 - 0.55 * learnt + rng.gauss(0, 0.02),
        "grad_norm": 0.12 + 0.25 * math.exp(-step / 9) + abs(rng.gauss(0, 0.03)),
        "clip_low": 0.004 + 0.003 * learnt + abs(rng.gauss(0, 0.001)),
        "clip_high": 0.0012 + abs(rng.gauss(0, 0.0006)),
        "kl": 0.0 if step == 0 else 0.09 * learnt + abs(rng.gauss(0, 0.002)),
        "loss": rng.gauss(0, 0.01),
        "lr": 3e-4,
        "mismatch": 4e-4 + abs(rng.gauss(0, 1e-4)),
        "mismatch_max": 0.02,
        "staleness_mean": min(step, 2) * 0.55 + abs(rng.gauss(0, 0.08)),
        "staleness_max": min(step, 2),
        "samples": 256,
        "groups": 32,
        "groups_all_right": 0.35 * learnt,
        "groups_all_wrong": 0.4 * (1 - learnt),
        "tokens_per_s": 9000 + rng.gauss(0, 400),
        "train_s": 4.1,
        "step_s": 5.2,
        "wait_share": min(1.0, 0.12 + abs(rng.gauss(0, 0.05)) + (0.7 if step == 0 else 0)),
        "waits": {"worker": 0.12},
        "skipped": False,
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "chain-sum-async2"
    rng = Random(0)
    with (
        MetricsWriter(run / "metrics/supervisor.jsonl") as supervisor,
        MetricsWriter(run / "metrics/trainer.jsonl") as trainer,
        MetricsWriter(run / "metrics/evaluator.jsonl") as evaluator,
        MetricsWriter(run / "metrics/worker-0.jsonl") as worker0,
        MetricsWriter(run / "metrics/worker-1.jsonl") as worker1,
    ):
        supervisor.write("start", total_steps=STEPS)
        for step in range(STEPS):
            for worker in (worker0, worker1):
                share = 0.05 + abs(rng.gauss(0.1, 0.04))
                worker.write(
                    "submission",
                    step=step,
                    tokens=3000,
                    samples=128,
                    tokens_per_s=5000 + rng.gauss(0, 200),
                    wait_share=share,
                )
            trainer.write("step", **step_values(step, rng))
            if step % 5 == 0:
                passed = 0.30 + 0.58 / (1 + math.exp(-(step - 14) / 5))
                evaluator.write(
                    "eval", version=step, step=step, tasks=200, pass_at_1=passed, low=passed - 0.065, high=passed + 0.06
                )
        supervisor.write("restart", role="worker-1", code=-9)
        trainer.write("refused", file="rollouts/7/x.parquet", reason="no footer")
        trainer.write("refused", file="rollouts/7/x.parquet", reason="no footer")
        supervisor.write("end")
    return run
