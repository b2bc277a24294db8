"""`shoal run` with one worker on our own engine and one on vLLM, whose engine core is killed: no file is rejected."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.telemetry.status import read_status

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
pytest.importorskip("fastapi", reason="a run needs the extra coordinator: make test-vllm has it")
pytestmark = pytest.mark.xdist_group("run")

DEADLINE_S = 1500

CONFIG = """
name = "side-by-side"
steps = 2000

[[tasks]]
source = "reasoning-gym/spell_backward"
binary = false
options = { min_word_len = 3, max_word_len = 5 }

[model]
source = "tiny"
tiny = { hidden = 64, layers = 2, warm_steps = 20 }

[sampling]
group_size = 4
max_new_tokens = 12
max_prompt_tokens = 32

[train]
groups_per_step = 16
lr = 1e-3

[workers]
count = 2
engines = ["torch", "vllm"]
groups_per_submission = 2
max_batch = 16
kv_cache_gb = 0.05

[eval]
tasks = 16
"""


def events(run: Path, role: str, event: str) -> list[dict[str, Any]]:
    path = run / "metrics" / f"{role}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def verdicts_on(run: Path, role: str) -> list[bool]:
    own = {(entry["step"], entry["submission"]) for entry in events(run, role, "submission")}
    return [e["accept"] for e in events(run, "validator", "verdict") if (e["step"], e["submission"]) in own]


def engine_cores(run: Path, role: str) -> list[int]:
    """Engine cores of vLLM that a role's process started itself: what these start has their name for a moment."""
    cores = list[int]()
    for parent in (status.pid for status in read_status(run) if status.role == role):
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):  # it has ended
                cores += [child for child in map(int, children.read_text().split()) if is_core(child)]
    return cores


def is_core(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"VLLM::EngineCore")
    except OSError:
        return False


@dataclass(frozen=True)
class Running:
    """`shoal run` at work."""

    process: "subprocess.Popen[bytes]"
    path: Path
    log: Path

    def wait_for_verdicts(self, role: str, count: int, deadline: float) -> None:
        while len(verdicts_on(self.path, role)) < count:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.5)


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    (folder / "config.toml").write_text(CONFIG)
    path, log = folder / "run", folder / "log"
    command = [sys.executable, "-m", "shoal", "run", str(folder / "config.toml"), "--out", str(path)]
    environment = {**os.environ, "SHOAL_CACHE": str(folder / "cache")}
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            yield Running(process, path, log)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(300)


def test_a_worker_on_vllm_works_beside_one_on_our_engine_outlives_its_engine_core_and_none_is_rejected(
    tmp_path: Path,
) -> None:
    """The run has more steps than it needs: vLLM starts while the other worker is at work already."""
    deadline = time.monotonic() + DEADLINE_S
    with running(tmp_path) as run:
        run.wait_for_verdicts("worker-1", 3, deadline)
        (core,) = engine_cores(run.path, "worker-1")
        os.kill(core, signal.SIGKILL)
        while (again := engine_cores(run.path, "worker-1")) in ([], [core]):
            assert time.monotonic() < deadline, run.log.read_text()[-3000:]
            time.sleep(0.5)
        handed_in = len(events(run.path, "worker-1", "submission"))
        run.wait_for_verdicts("worker-1", handed_in + 3, deadline)
    assert len(again) == 1
    for role, least in (("worker-0", 1), ("worker-1", 6)):
        found = verdicts_on(run.path, role)
        assert len(found) >= least, f"{role}: {len(found)} of its files were judged"
        assert all(found), role
