"""The two sides of the loop benchmark get the same work, and ours is stopped and started without losing a role."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import ROOT
from benchmarks.common.configs import changed, laptop_config
from benchmarks.common.roles import Roles
from benchmarks.swarm.services import share_of_services
from benchmarks.training.loop import (
    GROUP,
    INSTRUCTION,
    LENGTH,
    PROMPTS,
    SHAPES,
    conclude,
    loop_config,
    peer_prompts,
    unending,
)
from shoal.errors import BenchError
from shoal.models.load import load
from shoal.process import Child
from shoal.rundir import RunDir, prepare_run
from shoal.telemetry.metrics import read_metrics
from tests.support.until import until


@pytest.fixture
def run(tiny_dir: Path, tmp_path: Path) -> RunDir:
    unending(tiny_dir, tmp_path / "model")
    return prepare_run(
        loop_config(laptop_config(), tmp_path / "model", SHAPES[""]), tmp_path / "run", Console(quiet=True)
    )


def test_a_copy_without_end_has_the_same_weights_and_no_reachable_eos(tiny_dir: Path, tmp_path: Path) -> None:
    unending(tiny_dir, tmp_path / "model")
    base, copy = load(tiny_dir), load(tmp_path / "model")
    assert min(copy.eos_ids) >= copy.vocab == base.vocab
    assert all(bool((copy.weights()[name] == tensor).all()) for name, tensor in base.weights().items())
    prompt = "Spell this word backward (example: sun -> nus): fish"
    assert copy.encode(prompt) == base.encode(prompt)


def is_stopped(pid: int) -> bool:
    """A process goes on for a moment after it was sent the signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_our_side_trains_samples_of_the_fixed_length_stands_still_while_paused_and_goes_on(run: RunDir) -> None:
    def trained() -> int:
        return sum(entry["event"] == "step" for entry in read_metrics(run.path / "metrics" / "trainer.jsonl"))

    with Roles(run) as roles:
        steps = roles.steps(1, lambda _: None)
        roles.pause()
        until(lambda: all(is_stopped(child.process.pid) for child in roles._children))
        before, used = trained(), roles.cpu()
        time.sleep(1)
        assert (trained(), roles.cpu()) == (before, used)
        roles.resume()
        while trained() == before:
            steps += roles.steps(1, lambda _: None)
    assert all(entry["completion_tokens_mean"] == LENGTH for entry in steps)
    assert all(entry["samples"] % GROUP == 0 for entry in steps)
    # Through coordinator, origin and relay, as users run.
    assert set(used) == {"trainer", "coordinator", "origin", "relay", "validator", "worker-0"}
    assert 0 < share_of_services(used) < 10


def test_the_peer_is_asked_prompts_of_the_same_source_that_fit(run: RunDir) -> None:
    policy, prompts = load(run.base_model), peer_prompts(run.config, 3)
    assert len(set(prompts)) == 3 * PROMPTS
    assert all(prompt.startswith(INSTRUCTION.partition("{")[0]) for prompt in prompts)
    assert max(len(policy.encode(prompt)) for prompt in prompts) <= run.config.sampling.max_prompt_tokens


def test_a_role_that_gives_up_ends_the_bench_with_its_own_words(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["trainer", str(run.path / "nowhere"), "--join", "http://127.0.0.1:1"]
    trainer = Child("trainer", command, 1, run.path / "log")
    monkeypatch.setattr("benchmarks.common.roles.start_roles", lambda *_, **__: [trainer])
    with (
        Roles(run) as roles,
        pytest.raises(BenchError, match=r"(?s)trainer ended with 3; its log ends:.*error: .*nowhere"),
    ):
        roles.steps(1, lambda _: None)


BENCH = """
import sys, time
from pathlib import Path
from benchmarks.common import roles
from shoal.process import Child
from shoal.rundir import open_run
path = Path(sys.argv[1])
service = Child("coordinator", ["coordinator", str(path), "--port", "0"], 1, path / "log", is_service=True)
roles.start_roles = lambda *_, **__: [service]
with roles.Roles(open_run(path)) as started:
    started.pause()
    print(*(child.process.pid for child in started._children), flush=True)
    time.sleep(600)
"""


def test_paused_roles_end_when_the_bench_is_killed(run: RunDir) -> None:
    command = [sys.executable, "-c", BENCH, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as bench:
        assert bench.stdout
        (pid,) = [int(pid) for pid in bench.stdout.readline().split()]
        assert not _zombie(pid)
        bench.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not _zombie(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_changed_config_is_checked_as_a_whole() -> None:
    with pytest.raises(Exception, match="token_budget"):
        changed(laptop_config(), {"train.token_budget": 8})


def entry(**changes: float) -> dict[str, float]:
    told = {"step": 3, "samples": 64, "samples_seen": 80, "completion_tokens_mean": 32.0, "train_s": 0.2}
    return {**told, "staleness_mean": 2.0, **changes}


def test_the_ratio_is_of_the_best_rounds_and_counts_trained_samples() -> None:
    found = conclude([200.0, 300.0, 100.0], [50.0, 100.0, 40.0], [entry(), entry(samples=72)])
    assert found["samples_per_s_vs_trl"] == 3.0
    assert found["samples_per_s_vs_trl_medians"] == 4.0
    assert found["samples_a_step"] == 68
    assert found["samples_generated_a_step"] == 80


def test_a_step_with_a_short_answer_spoils_the_comparison() -> None:
    with pytest.raises(BenchError, match=r"step 7: answers have 31\.5 tokens on average, not 32"):
        conclude([1.0], [1.0], [entry(step=7, completion_tokens_mean=31.5)])
