"""`audit.engine = "vllm"`: a validator whose states vLLM computes comes to the verdicts that torch comes to."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shoal.errors import ModelError
from shoal.models.weights import read_weights, write_weights
from shoal.validate.recompute import replay
from shoal.validate.vllm_process import VARIABLE, vllm_python
from shoal.validate.vllm_states import StatesJob, VllmStates
from tests.support.model_and_checks import World, build_world, lease_of, model_dir

pytestmark = [
    pytest.mark.skipif(
        vllm_python() is None, reason=f"vLLM is not installed here, and {VARIABLE} names no interpreter"
    ),
    pytest.mark.xdist_group("states"),
]
MAX_LEN = 128
ATTACKS = ["int4", "int8", "temperature", "best_of_n", "edited_tokens", "false_logprobs", "own_mean_proof"]


@pytest.fixture(scope="module")
def world() -> World:
    return build_world("long")


@pytest.fixture(scope="module")
def engine(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStates]:
    """With version 1, which the world's files are made with."""
    python, folder = vllm_python(), tmp_path_factory.mktemp("versions") / "v1"
    assert python is not None
    shutil.copytree(model_dir("long"), folder)
    world.checks.policy.model.save_pretrained(folder)
    with VllmStates(python, StatesJob(MAX_LEN, MAX_LEN // 2)) as engine:  # so sequences are prefilled in chunks
        engine.use(1, folder)
        yield engine


def test_states_of_vllm_are_those_of_torch_up_to_rounding(world: World, engine: VllmStates) -> None:
    samples = world.honest().rollouts
    own, theirs = (replay(world.checks.policy, samples, None, 1.0, 256, states=s) for s in (None, engine.states))
    for sample, one, other in zip(samples, own, theirs, strict=True):
        assert len(other.states_TD) == len(sample.completion)
        torch.testing.assert_close(one.states_TD, other.states_TD, atol=2e-3, rtol=1e-4)
        assert abs(one.logprobs_T - other.logprobs_T).max() < 2e-4


def test_a_killed_process_costs_one_try_and_is_started_again(world: World, engine: VllmStates) -> None:
    samples = world.honest().rollouts[:1]
    before = engine.states(samples)
    assert before is not None
    assert engine._process is not None
    os.kill(engine._process._child.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match="vLLM"):
        engine.states(samples)
    again = engine.states(samples)
    assert again is not None
    assert torch.equal(again[0], before[0])


def test_honest_files_are_accepted_and_attacks_caught(
    world: World, engine: VllmStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.checks, "states", engine.states)
    for number in range(4):
        lease = lease_of(world, submission=number)
        assert world.verdict(world.file(world.maker(), lease), lease) is None
    for attack in ATTACKS:
        lease = lease_of(world, submission=9)
        maker = world.maker(attack)
        found = world.verdict(world.file(maker, lease), lease)
        assert found is not None, attack


def test_a_version_that_is_taken_into_use_is_the_one_that_is_computed_with_and_the_process_stays(
    world: World, engine: VllmStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And torch, which has version 1, has the last word."""
    monkeypatch.setattr(world.checks, "states", engine.states)
    submission, folder = world.honest(), engine._folder
    assert folder is not None

    def off() -> float:
        """How far the file's log-probs are from vLLM's."""
        found = replay(world.checks.policy, submission.rollouts, None, 1.0, 256, states=engine.states)
        pairs = zip(submission.rollouts, found, strict=True)
        return max(float(abs(sample.logprobs - own.logprobs_T).max()) for sample, own in pairs)

    blame_takes = 2 * world.config.audit.thresholds.logprob
    assert off() < blame_takes / 10
    assert engine._process is not None
    assert engine._process.reloads, "the interpreter with vLLM has no Shoal: versions are not loaded in place"
    process = engine._process._child.pid
    engine.use(2, model_dir("long"))  # version 0: what the file claims does not fit it
    assert off() > blame_takes
    assert next(world.checks.costly([submission])) is None
    engine.use(1, folder)
    assert off() < blame_takes / 10
    assert engine._process._child.pid == process


def test_a_version_that_does_not_fit_is_not_computed_with(engine: VllmStates, tmp_path: Path) -> None:
    engine.start()
    assert engine._process is not None
    weights = dict(read_weights(model_dir("long"), "float32"))
    name = next(name for name in weights if name.endswith("k_proj.weight"))
    write_weights(tmp_path, {**weights, name: weights[name][:1]})
    assert engine._process.load(tmp_path, "float32")
