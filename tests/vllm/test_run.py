"""`shoal run` with one worker on our own engine and one on vLLM: both are heard, none is rejected, the run ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
pytest.importorskip("fastapi", reason="a run needs the extra coordinator: make test-vllm has it")

CONFIG = """
name = "side-by-side"
steps = 4

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


def events(run: Path, role: str, event: str) -> list[dict[str, object]]:
    lines = (run / "metrics" / f"{role}.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


@pytest.mark.timeout(500)
def test_a_worker_on_vllm_and_one_on_our_engine_work_side_by_side_and_none_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "shoal", "run", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "SHOAL_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert events(tmp_path / "run", "worker-1", "submission"), "the worker on vLLM handed nothing in"
    rejected = [e for e in events(tmp_path / "run", "validator", "verdict") if not e["accept"]]
    assert rejected == []
