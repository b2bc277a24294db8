"""Honest ways differ by rounding alone, and are judged honest by rates that were measured without them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.errors import ModelError
from shoal.models.load import Policy, load
from shoal.protocol.rates.honest_rates import HonestRates
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from shoal.validate.numerics.bets import Bets, Observed, histograms
from shoal.validate.numerics.honest_answers import Drawn, honest_answers
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.ways import WAYS, Dense, Way, check_emulated, computed_as, states_of
from tests.support.architectures import save_random
from tests.support.model_and_checks import gym, model_dir
from tests.support.roles_in_process import make_config

ANSWERS, PROMPT, TOKENS = 8, 6, 64
EXACT = WAYS["float32"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """bfloat16 weights, widened."""
    directory = model_dir("short")
    wide = load(directory)
    wide.set_weights({name: w.bfloat16().float() for name, w in wide.weights().items()}, "bfloat16")
    return wide


@pytest.fixture(scope="module")
def sequences(policy: Policy) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, policy.vocab, (ANSWERS, PROMPT + TOKENS), generator=generator)
    return [list(map(int, row)) for row in ids]


def made(policy: Policy, way: Way, sequences: list[list[int]]) -> list[Observed]:
    """Answers as a worker computes them in a way, seen by a judge in float32. Prompts are continued as they are: which
    token is drawn at each place is the worker's choice, what comes before it is not."""
    texts = [Drawn(row[: PROMPT + 1], [*row[PROMPT + 1 :], 0], (7, number)) for number, row in enumerate(sequences)]
    return honest_answers(policy, way, texts, 1.0)


@pytest.fixture(scope="module")
def observed(policy: Policy, sequences: list[list[int]]) -> dict[str, list[Observed]]:
    return {name: made(policy, way, sequences) for name, way in WAYS.items()}


def test_there_are_ten_ways_and_each_rounds_otherwise(observed: dict[str, list[Observed]]) -> None:
    assert len(WAYS) >= 10
    gaps = {name: np.concatenate([answer.gaps_T for answer in answers]) for name, answers in observed.items()}
    assert np.abs(gaps.pop("float32")).max() < 1e-3
    sizes = {name: float(np.sqrt(np.mean(gaps_T**2))) for name, gaps_T in gaps.items()}
    assert min(sizes.values()) > 0.0005
    assert max(sizes.values()) < 4 * min(sizes.values())
    names = sorted(gaps)
    for place, name in enumerate(names):
        for other in names[place + 1 :]:
            assert not np.array_equal(gaps[name], gaps[other]), (name, other)


def test_a_way_is_undone_when_it_is_left(policy: Policy, sequences: list[list[int]]) -> None:
    before = states_of(policy, EXACT, sequences[:1])[0]
    with computed_as(policy, WAYS["tp8-eager"]), pytest.raises(ZeroDivisionError):
        _ = 1 // 0
    assert torch.equal(states_of(policy, EXACT, sequences[:1])[0], before)


def test_bfloat16_kernels_of_this_machine_are_within_what_is_emulated(
    policy: Policy, sequences: list[list[int]]
) -> None:
    """The emulation stands for real hardware: this machine's own bfloat16 is as far from float32 as the ways are."""
    real = load(model_dir("short"), "bfloat16")
    exact = [states[PROMPT:] for states in states_of(policy, EXACT, sequences)]
    ids_BT = torch.tensor(sequences)
    positions_BT = torch.arange(ids_BT.shape[1]).expand(len(sequences), -1)
    with torch.inference_mode():
        out = real.hidden(ids_BT, positions_BT, Dense(ids_BT.shape[1], Way("native", wide=True)))[:, PROMPT:].float()
    spread = float(torch.stack(exact).std())
    native = float((out - torch.stack(exact)).pow(2).mean().sqrt()) / spread
    emulated = {}
    for name in ("flash", "eager", "tp8-eager"):
        theirs = torch.stack([states[PROMPT:] for states in states_of(policy, WAYS[name], sequences)])
        emulated[name] = float((theirs - torch.stack(exact)).pow(2).mean().sqrt()) / spread
    assert 0.5 * min(emulated.values()) < native < 1.5 * max(emulated.values()), (native, emulated)


@pytest.mark.parametrize("way", [name for name in WAYS if name != "float32"])
def test_rates_measured_without_a_way_do_not_blame_it(observed: dict[str, list[Observed]], way: str) -> None:
    noise = own_noise(observed["flash"])
    rates = HonestRates.of({name: histograms(answers, noise) for name, answers in observed.items()})
    won = Bets(rates.without(way)).nats(observed[way], noise)
    assert max(won.values()) < 3, max(won, key=lambda bet: won[bet])


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EMULATED: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "smollm3": {},
    "granite": {},
    "qwen3_moe": EXPERTS,
}


@pytest.mark.parametrize("architecture", EMULATED)
def test_models_put_together_as_llama_is_are_emulated(architecture: str, tmp_path: Path) -> None:
    check_emulated(load(save_random(tmp_path, architecture, num_key_value_heads=2, **EMULATED[architecture])))


# Of the first two the emulation computes something else, and in noise measured on it any cheat was hidden. On most of
# the others it fails.
NOT_EMULATED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma", {"num_key_value_heads": 1, "head_dim": 16}, "GemmaForCausalLM: .*off by"),
    ("granite", {"num_key_value_heads": 2, "residual_multiplier": 0.3}, "GraniteForCausalLM: .*off by"),
    ("gemma3_text", {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64}, "Gemma3ForCausalLM: "),
    ("phi3", {"num_key_value_heads": 2, "sliding_window": None}, "Phi3ForCausalLM: .*Phi3MLP"),
    ("olmo2", {"num_key_value_heads": 2}, "Olmo2ForCausalLM: .*input_layernorm"),
    ("cohere", {"num_key_value_heads": 2}, "CohereForCausalLM: .*post_attention_layernorm"),
    ("gpt_neox", {}, "GPTNeoXForCausalLM: .*GPTNeoXMLP"),
    ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}, "GPT2LMHeadModel: "),
]


@pytest.mark.parametrize(("architecture", "changes", "said"), NOT_EMULATED, ids=[name for name, *_ in NOT_EMULATED])
def test_a_model_that_is_not_emulated_is_refused_by_name_in_bfloat16_alone(
    architecture: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    directory = save_random(tmp_path, architecture, **changes)
    policy, tasks = load(directory), gym()
    roots: dict[int, str] = {}
    configs = {dtype: make_config(directory, model={"dtype": dtype}) for dtype in ("float32", "bfloat16")}
    assert Checks(configs["float32"], policy, tasks, InProcess(tasks), roots.get).numbers is None
    with pytest.raises(ModelError, match=rf"^{said}.*; set model\.dtype = 'float32'$"):
        Checks(configs["bfloat16"], policy, tasks, InProcess(tasks), roots.get)
