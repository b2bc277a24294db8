"""A run with as many cheaters as honest workers trains on the honest ones' samples alone, and learns as it would."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from shoal.ledger.export import verify_file
from shoal.rundir import open_run
from shoal.swarm.past import reading
from shoal.swarm.tables import nodes, submissions
from shoal.watch.metrics import read_metrics, read_steps

STEPS = 40
CONFIG = f"""
name = "attacked"
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

[train.loss]
kl_coef = 0.0

[workers]
count = 2
groups_per_submission = 4

[eval]
tasks = 32
every = 60
"""
# Three strikes rather than two keep the cheaters at work a little longer.
CHEATERS = """
[[cheaters]]
attack = "int8"

[[cheaters]]
attack = "best_of_n"

[audit]
strikes = 3
"""


def final_reward(out: Path) -> float:
    rewards = [float(entry["reward"]) for entry in read_steps(out / "metrics" / "trainer.jsonl", "step")]
    assert len(rewards) == STEPS
    return sum(rewards[-10:]) / 10


def run(folder: Path, name: str, config: str) -> Path:
    path, out = folder / f"{name}.toml", folder / name
    path.write_text(config)
    command = [sys.executable, "-m", "shoal", "run", str(path), "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env={**os.environ, "SHOAL_CACHE": str(folder / "cache")}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.timeout(900)
def test_the_trainer_sees_not_one_sample_of_the_cheaters_and_learns_as_without_them(tmp_path: Path) -> None:
    calm = run(tmp_path, "calm", CONFIG)
    out = run(tmp_path, "attacked", CONFIG + CHEATERS)
    trained: Counter[str] = Counter()
    used = json.loads((max((out / "checkpoints").glob("step-*")) / "state.json").read_text())["used"]
    with reading(open_run(out)) as db:
        names = {row.address: row.name for row in db.execute(select(nodes))}
        banned = {row.name for row in db.execute(select(nodes).where(nodes.c.state == "banned"))}
        makers = {(row.step, row.submission): names[row.node] for row in db.execute(select(submissions))}
    for step, numbers in used.items():
        trained.update(makers[int(step), int(number)] for number in numbers)
    assert trained
    assert set(trained) <= {"worker-0", "worker-1"}
    judged = [entry for entry in read_metrics(out / "metrics" / "validator.jsonl") if entry["event"] == "verdict"]
    verdicts = Counter((names[entry["node"]].split("-")[0], entry["accept"]) for entry in judged)
    assert verdicts["cheater", True] == 0
    assert verdicts["cheater", False] >= 6
    assert verdicts["worker", False] == 0
    assert banned == {"cheater-0", "cheater-1"}
    assert len(list((out / "evidence").glob("*.json"))) == verdicts["cheater", False]
    lost = {
        names[account.address] for account in verify_file(out / "ledger.db").state.accounts.values() if account.slashed
    }
    assert lost == banned
    # Rewards of ten steps of 96 samples and more: the standard error of their mean is about 0.02.
    assert abs(final_reward(out) - final_reward(calm)) < 0.12
