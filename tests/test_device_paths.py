"""Every forward path runs on a GPU that is not there, and code that computes names no device and leaves none unseen.

Fake tensors have no values: these tests show that no path mixes devices, not what a GPU computes.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import shoal
from shoal import toploc
from shoal.devices import CPU
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CapturedStates
from shoal.generate.vllm.draw import Noise, Row, draw
from shoal.models import load
from shoal.models.load import Policy
from shoal.protocol.rollout import Rollout
from shoal.train import batch
from shoal.train.batch import Group
from shoal.train.scorer import logprobs
from shoal.validate.numerics.honest_answers import Drawn, honest_answers
from shoal.validate.numerics.ways import WAYS
from shoal.validate.recompute import replay
from tests.support.fake_gpu import CUDA, MPS, fake_gpu, move
from tests.support.submissions import make_rollout

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 300}
PACKAGE = Path(shoal.__file__).parent


@pytest.fixture(
    params=[(CUDA, torch.bfloat16), (CUDA, torch.float32), (MPS, torch.float32)],
    ids=["cuda bfloat16", "cuda float32", "mps float32"],
)
def policy(request: pytest.FixtureRequest) -> Iterator[Policy]:
    """A model on a fake device, checked there as `load` does: in 16 bits as workers have it, in float32 as judges."""
    device, dtype = request.param
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **heads)).to(dtype)
    with fake_gpu():
        move(model, device)
        found = Policy(model, None, frozenset([1]))  # type: ignore[arg-type]
        load._check(found, Path("the model"))
        yield found


def answers() -> list[Rollout]:
    """Three to one prompt and one to another."""
    lengths = ((range(2, 7), 2), (range(2, 7), 6), (range(2, 7), 3), (range(3, 12), 4))
    return [
        make_rollout(0, number, prompt=list(prompt), completion=[9] * length, logprobs=[-1.0] * length)
        for number, (prompt, length) in enumerate(lengths)
    ]


def test_training_computes_where_the_policy_is(policy: Policy) -> None:
    *same, other = answers()
    groups = [Group(own[0].prompt, own, [1.0] * len(own), 0) for own in (same, [other])]
    (packed,) = batch.pack(groups, 64)
    logp_A, entropy_A = logprobs(policy, packed.to(policy.device), 0.7)
    assert (logp_A.device, entropy_A.device) == (policy.device, policy.device)
    assert logp_A.shape == (15,)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_the_engine_computes_where_the_policy_is_and_hands_out_what_is_on_the_host(
    policy: Policy, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toploc, "build_from_top", lambda *_: b"")  # values that are not there have no positions
    engine = TorchEngine(policy, max_batch=2, max_len=20, temperature=temperature)
    requests = [Request(tuple(range(2, 2 + length)), 7, length, 2) for length in (3, 3, 8)]
    made = list(engine.generate(requests, hidden=True))
    assert sorted(completion.key for completion in made) == [0, 1, 2]
    for completion in made:
        assert completion.hidden_TD is not None
        assert completion.hidden_TD.device == CPU


@pytest.mark.parametrize("numeric", [False, True], ids=["", "numeric"])
@pytest.mark.parametrize("seeded", [False, True], ids=["free", "seeded"])
def test_judges_recompute_where_the_policy_is(policy: Policy, seeded: bool, numeric: bool) -> None:
    samples = answers()
    keys = [(5, number) for number in range(len(samples))] if seeded else None
    found = replay(policy, samples, keys, 0.7, 64, numeric=numeric)
    assert [own.states_TD.device for own in found] == [policy.device] * len(samples)
    assert [own.logprobs_T.shape for own in found] == [(2,), (6,), (3,), (4,)]


@pytest.mark.parametrize("way", ["flash", "eager", "split-kv", "tp4"])
def test_a_judge_measures_its_own_noise_where_the_policy_is(policy: Policy, way: str) -> None:
    texts = [Drawn([2, 3, 4], [9] * 8, (1, 0)), Drawn([2, 3], [9] * 5, (1, 1))]
    if policy.model.dtype == torch.float32:  # as every judge's is
        assert len(honest_answers(policy, WAYS[way], texts, 1.0)) == 2


@pytest.mark.parametrize("read", [4, 3], ids=["all rows", "some rows"])
def test_rows_of_vllm_are_drawn_and_proven_where_they_are(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's place taken by one that gives what it gives; `read` rows are at the end of their prompts."""

    def drawn(logits_BV: Tensor, *asked: list[int]) -> tuple[Tensor, Tensor]:
        assert {len(one) for one in asked} == {len(logits_BV)}
        return logits_BV.argmax(dim=1), logits_BV[:, 0]

    kernel: Any = ModuleType("noise_kernel")
    kernel.draw_on_device = drawn
    monkeypatch.setitem(sys.modules, "shoal.generate.vllm.noise_kernel", kernel)
    monkeypatch.setattr(toploc, "build_from_top", lambda *_: b"1")
    captured, noises = CapturedStates(), [Noise(Asked(n, 7, n, 0.7, proof=True), 300) for n in range(read)]
    model = SimpleNamespace(compute_logits=lambda states_BD: states_BD[:, :1].float() * torch.ones(300, device=CUDA))
    captured.watch(model, builds=True)
    with fake_gpu():
        for position in range(40):
            logits_BV = model.compute_logits(torch.zeros(4, 64, device=CUDA, dtype=torch.bfloat16))
            rows = [Row(row, noise, position) for row, noise in enumerate(noises)]
            captured.hand_over(rows, 4)
            assert draw(logits_BV, rows).device == CUDA
        assert captured.take(0, 40) == b"11"


@pytest.mark.parametrize("device", [CUDA, MPS], ids=str)
def test_a_fake_device_notices_what_is_on_another_one(device: torch.device) -> None:
    with fake_gpu():
        here, there = torch.zeros(3, device=device), torch.zeros(3)
        with pytest.raises(RuntimeError, match="device"):
            here + there
        with pytest.raises(RuntimeError, match="device"):
            here.unsqueeze(0) @ there.unsqueeze(1)
        with pytest.raises(RuntimeError, match="device"):
            here.gather(0, torch.tensor([0]))


def test_a_fake_mps_has_no_float64() -> None:
    with fake_gpu(), pytest.raises(TypeError, match="float64"):
        torch.zeros(3, device=MPS).double()


# What must not stand in the package, and where it may, each with its reason.
FORBIDDEN = {
    r"_for_cpu\b": {"models/kernels/padded.py": "the kernel of the CPU's row"},
    r"\btorch\.(cuda|mps)\b|backends\.mps|\"cuda\"|\"mps\"": {
        "devices.py": "knows what devices there are",
        "config/table.py": "names what may be asked for",
    },
    r"set_num_threads": {"devices.py": "sets them"},
    r"\.numpy\(\)": {
        "devices.py": "the way to the host",
        "toploc/hidden_states.py": "brings the states of proofs to the host, as bits",
        "models/weights.py": "brings weights to the host, as bytes of a file",
        "validate/vllm_script.py": "runs in a process of vLLM, without this package",
    },
    r"\.double\(|torch\.float64": {
        "devices.py": "knows which device lacks it",
        "models/weights.py": "the name of a format in a file",
        "train/distributed.py": "what ranks tell each other is on the host",
    },
}
HOST_ONLY = ("tasks/", "protocol/", "shardcast/", "coordinator/", "ledger/", "client/", "watch/", "rl/")
"""Folders that have no policy: what they make of tensors stays where it is."""
FACTORY = re.compile(r"\btorch\.(tensor|zeros|ones|empty|full|arange|from_numpy|as_tensor)\(")
ON_HOST = {
    "models/attention.py": "a layout is numbers on the host",
    "models/load.py": "tokens of the check are drawn on the host, and moved",
    "models/tiny.py": "the tiny model is made on the CPU",
    "train/batch.py": "micro-batches are packed on the host, and moved",
    "train/dealing.py": "micro-batches are dealt on the host",
    "train/distributed.py": "what ranks tell each other is on the host",
    "train/checkpoint.py": "what ranks tell each other is on the host",
    "roles/trainer_rank.py": "what ranks tell each other is on the host",
    "train/optimizer.py": "the number of steps is on the host, as AdamW has it",
    "generate/submission_builder.py": "rewards of a group",
    "generate/kv_cache.py": "memory of the host that is taken when it is first written",
    "validate/checks/rewards.py": "rewards of a group",
    "doctor/steps/training.py": "rewards of a group",
    "models/merge.py": "adapters are merged on the CPU, to the bit",
    "attacks/": "cheaters that are run to see them caught",
    "fbam/": "action models are computed on the CPU",
}


def sources() -> Iterator[tuple[str, int, str]]:
    """File, number and text of each line of the package that is code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield name, number, line.split("  # ")[0]


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_only_the_module_that_is_made_for_it_knows(pattern: str) -> None:
    found = {name for name, _, line in sources() if re.search(pattern, line)}
    assert found == set(FORBIDDEN[pattern])


def test_code_that_computes_says_on_which_device_a_tensor_is_made() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, number, line in sources()
        if FACTORY.search(line) and not re.search(r"device|\.to\(", line)
        if not name.startswith((*HOST_ONLY, *ON_HOST))
    ]
    assert found == []
