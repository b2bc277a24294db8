"""`audit.engine = "vllm"`: a validator whose states vLLM computes comes to the verdicts that torch comes to."""

import os
import shutil
import signal
from collections.abc import Iterator

import pytest
import torch

from shoal.errors import ModelError
from shoal.validate.recompute import replay
from shoal.validate.vllm_process import VARIABLE, vllm_python
from shoal.validate.vllm_states import VllmStates
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
    with VllmStates(python, MAX_LEN, budget=MAX_LEN // 2) as engine:  # so sequences are prefilled in chunks
        engine.use(folder)
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
    assert engine._process is not None
    os.kill(engine._process._child.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match="vLLM"):
        engine.states(samples)
    assert torch.equal(engine.states(samples)[0], before[0])


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


def test_a_version_that_is_taken_into_use_is_the_one_that_is_computed_with(
    world: World, engine: VllmStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And torch, which has version 1, has the last word. The last test of this file: going back to version 1 would
    start vLLM once more."""
    monkeypatch.setattr(world.checks, "states", engine.states)
    submission = world.honest()

    def off() -> float:
        """How far the file's log-probs are from vLLM's."""
        found = replay(world.checks.policy, submission.rollouts, None, 1.0, 256, states=engine.states)
        pairs = zip(submission.rollouts, found, strict=True)
        return max(float(abs(sample.logprobs - own.logprobs_T).max()) for sample, own in pairs)

    blame_takes = 2 * world.config.audit.thresholds.logprob
    assert off() < blame_takes / 10
    engine.use(model_dir("long"))  # version 0: what the file claims does not fit it
    assert off() > blame_takes
    assert next(world.checks.costly([submission])) is None
