"""What TRL's script does around TRL: its rounds and its independence. TRL itself is not installed here."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.peers.process import TRL_SCRIPT, Peer, peer_python
from benchmarks.peers.trl import Count, Job, Rounds, warmup_steps
from shoal.errors import BenchError


def job(prompts: int, prompts_per_step: int) -> Job:
    return Job(
        model="/nowhere",
        prompts=["?"] * prompts,
        prompts_per_step=prompts_per_step,
        group_size=8,
        max_new_tokens=32,
        lr=1e-5,
        kl_coef=0.0,
        temperature=1.0,
        threads=1,
    )


def test_each_round_takes_the_steps_ordered_and_counts_only_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"steps": 3}\n{"steps": 1}\n'))
    answers = io.StringIO()
    rounds = Rounds(answers, {"ready": True}, left=2)
    steps = 0

    def train() -> None:
        nonlocal steps
        while True:
            rounds.before_step(Count(samples=64 * steps, prompt_tokens=10 * steps, generated_tokens=2048 * steps))
            steps += 1

    with pytest.raises(SystemExit):
        train()
    ready, first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert steps == 2 + 3 + 1
    assert ready == {"ready": True}
    assert first.pop("seconds") > 0
    assert first == {"steps": 3, "samples": 192, "prompt_tokens": 30, "generated_tokens": 6144}
    assert second["samples"] == 64


@pytest.mark.parametrize(("prompts", "steps"), [(1, 2), (40, 5), (41, 6), (10_000, 16)])
def test_the_warm_up_passes_over_all_prompts_within_bounds(prompts: int, steps: int) -> None:
    assert warmup_steps(job(prompts, prompts_per_step=8)) == steps


def test_the_script_needs_nothing_of_ours(tmp_path: Path) -> None:
    bare = peer_python("bare", [], cache=tmp_path)
    with Peer("trl", bare, TRL_SCRIPT) as trl, pytest.raises(BenchError, match="No module named 'torch'"):
        trl.ask(asdict(job(8, prompts_per_step=8)), awaiting="the warm-up", deadline_s=60)
