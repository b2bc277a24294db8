"""`shoal run` with one worker on our own engine and one on vLLM: both are heard, and none is rejected."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
pytest.importorskip("fastapi", reason="a run needs the extra coordinator: make test-vllm has it")

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


@pytest.mark.timeout(500)
def test_a_worker_on_vllm_and_one_on_our_engine_work_side_by_side_and_none_is_rejected(tmp_path: Path) -> None:
    """The run has more steps than it needs: vLLM starts while the other worker is at work already."""
    (tmp_path / "config.toml").write_text(CONFIG)
    run, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-m", "shoal", "run", str(tmp_path / "config.toml"), "--out", str(run)]
    environment = {**os.environ, "SHOAL_CACHE": str(tmp_path / "cache")}
    deadline = time.monotonic() + 400
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as running:
        try:
            while len(verdicts_on(run, "worker-1")) < 3:
                assert running.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(60)
    assert all(verdicts_on(run, "worker-0"))
    assert all(verdicts_on(run, "worker-1"))
