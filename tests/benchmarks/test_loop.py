"""The two sides of the loop bench get the same work, and ours is stopped and started without losing a role."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.configs import changed, laptop_config
from benchmarks.common.roles import Roles
from benchmarks.training.loop import GROUP, LENGTH, PROMPTS, SHAPES, conclude, first_prompts, loop_config, unending
from shoal.errors import BenchError
from shoal.models.load import load
from shoal.rundir import RunDir, prepare_run
from shoal.tasks.build import build_source
from shoal.telemetry.metrics import read_metrics


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


def test_our_side_trains_as_many_samples_of_the_fixed_length_and_is_asked_what_the_peer_is_asked(run: RunDir) -> None:
    with Roles(run) as roles:
        steps = roles.steps(2, lambda _: None)
    assert all(entry["completion_tokens_mean"] == LENGTH for entry in steps)
    assert all(entry["samples"] % GROUP == 0 for entry in steps)
    store, policy = run.store(), load(run.base_model)
    tasks = build_source(run.config.tasks)
    lease = store._read_lease(0, 0)
    assert lease is not None
    asked = [tasks.task("train", lease.task_index(group)).prompt for group in range(PROMPTS)]
    assert first_prompts(run.config, 3)[:PROMPTS] == asked
    assert max(len(policy.encode(prompt)) for prompt in asked) <= run.config.sampling.max_prompt_tokens


def test_paused_roles_stand_still_and_go_on_where_they_were(run: RunDir) -> None:
    def trained() -> int:
        return sum(entry["event"] == "step" for entry in read_metrics(run.path / "metrics" / "trainer.jsonl"))

    with Roles(run) as roles:
        roles.steps(1, lambda _: None)
        roles.pause()
        time.sleep(0.5)
        before = trained()
        time.sleep(2)
        assert trained() == before
        roles.resume()
        roles.steps(1, lambda _: None)
        assert trained() > before


def test_a_role_that_gives_up_ends_the_bench_with_its_own_words(run: RunDir) -> None:
    (run.base_model / "model.safetensors").unlink()
    with (
        Roles(run) as roles,
        pytest.raises(
            BenchError,
            match=r"(?s)ended with 3; its log ends:.*error: (version 0: not here any more|model .*: no \*.safetensors)",
        ),
    ):
        roles.steps(1, lambda _: None)


BENCH = """
import sys, time
from pathlib import Path
from benchmarks.common.roles import Roles
from shoal.rundir import open_run
with Roles(open_run(Path(sys.argv[1]))) as roles:
    roles.pause()
    print(*(child.process.pid for child in roles._children), flush=True)
    time.sleep(600)
"""


def test_paused_roles_end_when_the_bench_is_killed(run: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", BENCH, str(run.path)], stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout
        pids = [int(pid) for pid in bench.stdout.readline().split()]
        assert len(pids) == 3
        bench.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() and not _zombie(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and not _zombie(pid)]


def _zombie(pid: int) -> bool:
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
