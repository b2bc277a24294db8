"""Which engine computes the states of files, and that its states take the place of the policy's."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.config import RunConfig
from shoal.errors import ConfigError, ModelError
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import is_blame
from shoal.validate import vllm_states
from shoal.validate.numerics.account import BAN_NATS
from shoal.validate.numerics.judge import Weighed
from shoal.validate.recompute import StatesOf, replay
from shoal.validate.vllm_states import VllmStates, vllm_for
from tests.support.coordinator_in_process import make_config
from tests.support.model_and_checks import VERSIONS, World, build_world, lease_of

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
HERE = Path(sys.executable)


def config(engine: str, **changes: object) -> RunConfig:
    return make_config(audit={"engine": engine}, **changes)


@pytest.mark.parametrize(
    ("engine", "device", "there", "expected"),
    [
        ("auto", CPU, True, None),
        ("auto", CUDA, True, HERE),
        ("auto", CUDA, False, None),
        ("torch", CUDA, True, None),
        ("vllm", CPU, True, HERE),
        ("vllm", CUDA, True, HERE),
    ],
)
def test_the_engine_follows_from_config_and_device(
    engine: str, device: torch.device, there: bool, expected: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: HERE if there else None)
    assert vllm_for(config(engine), device) == expected


def test_vllm_that_is_asked_for_and_missing_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: None)
    with pytest.raises(ConfigError, match=r'audit.engine = "vllm": vLLM cannot be imported .*SHOAL_VLLM_PYTHON'):
        vllm_for(config("vllm"), CPU)


@pytest.mark.parametrize("engine", ["auto", "vllm"])
def test_versions_of_a_run_that_trains_adapters_are_computed_with_torch(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_states, "vllm_python", lambda: HERE)
    assert vllm_for(config(engine, train={"lora": {"rank": 4}}), CUDA) is None


def test_adapters_are_not_given_to_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_states, "is_adapter", lambda _folder: True)
    with VllmStates(HERE, 64, 64) as engine:
        engine.use(tmp_path)
        with pytest.raises(ModelError, match="is an adapter"):
            engine.states([])


# Speaks as `vllm_script` does, gives states of zeros, and dies of the first request if its version says so.
INTERPRETER = f"""#!{HERE}
import json, os, sys
from pathlib import Path
mortal = Path(json.loads(sys.stdin.readline())["model"]) / "mortal"
print('{{"vllm": "0"}}', flush=True)
for line in sys.stdin:
    if mortal.exists():
        mortal.unlink()
        os._exit(9)
    asked = json.loads(line)
    shapes = [[len(s) - begin, 2] for s, begin in zip(asked["sequences"], asked["begins"])]
    sys.stdout.write(json.dumps({{"states": shapes}}) + "\\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(bytes(4 * rows * width) for rows, width in shapes))
    sys.stdout.buffer.flush()
"""


def test_a_process_that_dies_costs_one_try_and_the_next_file_gets_another(tmp_path: Path, honest: Submission) -> None:
    (program := tmp_path / "python").write_text(INTERPRETER)
    program.chmod(0o700)
    (tmp_path / "mortal").touch()
    with VllmStates(program, 64, 64) as engine:
        engine.use(tmp_path)
        with pytest.raises(ModelError, match="vLLM"):
            engine.states(honest.rollouts)
        lengths = [len(states_TD) for states_TD in engine.states(honest.rollouts)]
    assert lengths == [len(rollout.completion) for rollout in honest.rollouts]


def test_given_states_take_the_place_of_the_policys(world: World, honest: Submission) -> None:
    """Whatever order samples are packed in, each gets its own."""
    policy = world.checks.policy
    asked: list[int] = []

    def states(samples: Sequence[Rollout]) -> list[torch.Tensor]:
        asked.append(len(samples))
        return [own.states_TD for own in replay(policy, samples, None, 1.0, 10**6)]

    keys = [(7, number) for number in range(len(honest.rollouts))]
    plain = replay(policy, honest.rollouts, keys, 1.0, 64)
    given = replay(policy, honest.rollouts, keys, 1.0, 64, states=states)
    assert sum(asked) == len(honest.rollouts)
    for one, other in zip(plain, given, strict=True):
        torch.testing.assert_close(one.states_TD, other.states_TD, atol=1e-4, rtol=1e-4)
        assert abs(one.logprobs_T - other.logprobs_T).max() < 1e-4
        assert one.shortfalls_T is not None
        assert other.shortfalls_T is not None
        assert abs(one.shortfalls_T - other.shortfalls_T).max() < 1e-4


def wrong_states(policy: Policy) -> StatesOf:
    """An engine that computes something else."""
    return lambda samples: [-own.states_TD for own in replay(policy, samples, None, 1.0, 10**6)]


def test_nobody_is_blamed_for_what_another_engine_computed_wrong(world: World, honest: Submission) -> None:
    """Of several files, each is decided by the policy, and a file that is wrong stays so."""
    lease = lease_of(world, submission=3)
    cheat = world.maker("edited_tokens").make(lease, VERSIONS[1])
    checks = replace(world.checks)
    checks.compute_states(wrong_states(checks.policy))
    before, blamed, after = checks.costly([honest, cheat, honest])
    assert (before, after) == (None, None)
    assert is_blame(blamed)
    assert checks.states is not None, "the next file is computed by the engine again"


def test_what_another_engine_alone_finds_is_no_evidence() -> None:
    rounded = build_world("short", "bfloat16")
    lease = lease_of(rounded, submission=3)
    made, cheat = (rounded.maker(attack).make(lease, VERSIONS[1]) for attack in (None, "random_proof"))
    checks = rounded.checks
    checks.compute_states(wrong_states(checks.policy))
    assert checks.weigh(made).total < 0
    assert checks.weigh(cheat).total > BAN_NATS
    assert checks.numbers is not None
    assert checks.numbers.states is checks.states is not None


def test_evidence_that_two_computations_agree_on_is_the_smaller_of_both() -> None:
    one, other = Weighed({"gaps": 3.0, "chunks": -1.0}, 64), Weighed({"gaps": 2.0, "chunks": 5.0}, 64)
    assert one.at_most(other) == Weighed({"gaps": 2.0, "chunks": -1.0}, 64)
