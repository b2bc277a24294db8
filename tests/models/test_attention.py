"""Packing is invisible: whatever else stands in the row, a sample is computed as if it were alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from shoal.errors import ModelError
from shoal.generate.torch_engine import TorchEngine
from shoal.models.attention import Packed, SharedPrompt
from shoal.models.kernels.segments import MAX_PADDING, similar
from shoal.models.load import Policy, load
from tests.support.architectures import VOCAB, plain_model, save_random

RUNS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=8)
families = st.lists(
    st.builds(SharedPrompt, st.integers(1, 20), st.lists(st.integers(0, 15), max_size=5).map(tuple)),
    min_size=1,
    max_size=4,
)

# GQA, a bias on q and k, norms on q and k, partial rotation, fused projections, learned positions, experts.
SUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    ("qwen2", {"num_key_value_heads": 2}),
    ("qwen3", {"num_key_value_heads": 2, "head_dim": 32}),
    ("mistral", {"num_key_value_heads": 2, "sliding_window": 64}),
    ("gemma", {"num_key_value_heads": 1, "head_dim": 16}),
    ("gemma3_text", {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64}),
    ("gpt_neox", {}),
    ("phi3", {"num_key_value_heads": 2, "sliding_window": None}),
    ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    ("olmo2", {"num_key_value_heads": 2}),
    ("granite", {"num_key_value_heads": 2, "logits_scaling": 3.0, "attention_multiplier": 0.3}),
    ("cohere", {"num_key_value_heads": 2, "logit_scale": 0.25}),
    ("qwen3_moe", {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
]

# What the message must name besides the class.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"num_key_value_heads": 2, "head_dim": 16}, "Gemma2ForCausalLM .*softcap"),
    ("gpt_oss", {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4}, "GptOssForCausalLM .*s_aux"),
    ("mamba", {}, "MambaForCausalLM .*differ"),
    ("gptj", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 128}, "GPTJForCausalLM"),
    ("bloom", {"n_layer": 2, "n_head": 4}, "BloomForCausalLM"),
]


def ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(2, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def states(policy: Policy, layout: Packed, row_T: Tensor) -> Tensor:
    return policy.hidden(row_T.unsqueeze(0), layout.positions_1T, layout)[0]


def logps(policy: Policy, hidden_TD: Tensor) -> Tensor:
    return policy.head(hidden_TD).log_softmax(-1)


def unpacked(layout_of: list[SharedPrompt], row_T: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each sample on its own: its tokens, and where they stand in the packed row."""
    samples = []
    cursor = 0
    for family in layout_of:
        prompt_P = torch.arange(cursor, cursor + family.prompt)
        cursor += family.prompt
        for answer in family.answers or (0,):
            place = torch.cat([prompt_P, torch.arange(cursor, cursor + answer)])
            cursor += answer
            samples.append((row_T[place], place))
    assert cursor == len(row_T)
    return samples


@pytest.fixture(scope="module")
def gqa_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("gqa"), "llama", num_key_value_heads=2)


@pytest.fixture(scope="module")
def gqa(gqa_dir: Path) -> Policy:
    return load(gqa_dir)


@pytest.fixture(scope="module")
def plain(gqa_dir: Path) -> PreTrainedModel:
    return plain_model(gqa_dir)


@RUNS
@given(lengths)
@example([1])
@example([1, 1, 1])
@example([40, 1, 39, 1, 7])
@torch.no_grad()
def test_packed_and_unpacked_log_probs_agree(gqa: Policy, plain: PreTrainedModel, ragged: list[int]) -> None:
    layout, row_T = Packed(ragged), ids(sum(ragged))
    ours_TV = logps(gqa, states(gqa, layout, row_T))
    for own_t, start in zip(row_T.split(ragged), layout.starts, strict=True):
        alone_tV = plain(input_ids=own_t.unsqueeze(0)).logits[0].log_softmax(-1)
        assert torch.allclose(ours_TV[start : start + len(own_t)], alone_tV, atol=1e-5, rtol=0)


@RUNS
@given(families)
@example([SharedPrompt(1, (0,))])
@example([SharedPrompt(1, (0, 0, 3, 0))])
@example([SharedPrompt(5), SharedPrompt(1, (1, 1)), SharedPrompt(20, (15, 0, 15))])
@torch.no_grad()
def test_answers_that_share_a_prompt_are_computed_as_if_each_had_its_own(
    gqa: Policy, plain: PreTrainedModel, mix: list[SharedPrompt]
) -> None:
    layout = Packed(mix)
    row_T = ids(layout.tokens)
    ours_TV = logps(gqa, states(gqa, layout, row_T))
    for own_t, place_t in unpacked(mix, row_T):
        alone_tV = plain(input_ids=own_t.unsqueeze(0)).logits[0].log_softmax(-1)
        assert torch.allclose(ours_TV[place_t], alone_tV, atol=1e-5, rtol=0)


def test_answers_start_where_the_layout_says() -> None:
    layout = Packed([SharedPrompt(3, (2, 0, 1)), SharedPrompt(4), SharedPrompt(1, (5,))])
    assert layout.starts == [0, 6, 10]
    assert layout.answer_starts == [3, 5, 5, 11]
    assert layout.positions_1T.tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]
    assert (layout.tokens, layout.longest) == (16, 6)


@pytest.mark.parametrize(
    "mix",
    [[SharedPrompt(7), SharedPrompt(2), SharedPrompt(11)], [SharedPrompt(6, (5, 1, 0, 9)), SharedPrompt(1, (3, 3))]],
)
def test_gradients_of_packed_and_unpacked_samples_agree(gqa_dir: Path, mix: list[SharedPrompt]) -> None:
    ours, theirs = load(gqa_dir), plain_model(gqa_dir)
    layout = Packed(mix)
    row_T = ids(layout.tokens)
    hidden_TD = states(ours, layout, row_T)
    packed_loss = torch.zeros(())
    alone_loss = torch.zeros(())
    for own_t, place_t in unpacked(mix, row_T):
        packed_loss += logps(ours, hidden_TD[place_t[:-1]]).gather(1, own_t[1:, None]).sum()
        logits_tV = theirs(input_ids=own_t.unsqueeze(0)).logits[0, :-1]
        alone_loss += logits_tV.log_softmax(-1).gather(1, own_t[1:, None]).sum()
    torch.autograd.backward([packed_loss, alone_loss])
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.model.named_parameters():
        assert parameter.grad is not None, name
        expected = reference[name].grad
        assert expected is not None
        scale = float(expected.abs().max())
        assert scale > 0, name
        assert float((parameter.grad - expected).abs().max()) <= 1e-5 * max(scale, 1.0), name


@RUNS
@given(st.lists(st.integers(1, 25), min_size=2, max_size=6), st.data())
@torch.no_grad()
def test_a_sample_sees_nothing_of_the_others(gqa: Policy, ragged: list[int], data: st.DataObject) -> None:
    changed = data.draw(st.integers(0, len(ragged) - 1))
    layout, before_T = Packed(ragged), ids(sum(ragged))
    own = slice(layout.starts[changed], layout.starts[changed] + ragged[changed])
    after_T = before_T.clone()
    after_T[own] = ids(ragged[changed], seed=1)
    difference_TD = (states(gqa, layout, before_T) - states(gqa, layout, after_T)).abs()
    difference_TD[own] = 0
    assert float(difference_TD.max()) == 0.0


@torch.no_grad()
def test_an_answer_sees_nothing_of_its_siblings_and_the_prompt_nothing_of_its_answers(gqa: Policy) -> None:
    layout, before_T = Packed([SharedPrompt(6, (4, 5)), SharedPrompt(3)]), ids(18)
    second = slice(10, 15)
    after_T = before_T.clone()
    after_T[second] = ids(5, seed=1)
    difference_TD = (states(gqa, layout, before_T) - states(gqa, layout, after_T)).abs()
    assert float(difference_TD[second].max()) > 0.1
    difference_TD[second] = 0
    assert float(difference_TD.max()) == 0.0


@torch.no_grad()
def test_no_token_sees_what_comes_after_it(gqa: Policy) -> None:
    layout, before_T = Packed([9, 12]), ids(21)
    after_T = before_T.clone()
    after_T[5] = (before_T[5] + 1) % 250 + 2
    difference_TD = (states(gqa, layout, before_T) - states(gqa, layout, after_T)).abs()
    assert float(difference_TD[:5].max()) == 0.0
    assert float(difference_TD[5:9].amax(dim=1).min()) > 0
    assert float(difference_TD[9:].max()) == 0.0


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_buckets_hold_each_sample_once_and_waste_little(ragged: list[int]) -> None:
    buckets = similar(ragged)
    assert sorted(sample for bucket in buckets for sample in bucket) == list(range(len(ragged)))
    for bucket in buckets:
        room = len(bucket) * max(ragged[sample] for sample in bucket)
        assert sum(ragged[sample] for sample in bucket) >= (1 - MAX_PADDING) * room


@pytest.mark.parametrize(("architecture", "changes"), SUPPORTED, ids=lambda value: value if type(value) is str else "")
@torch.no_grad()
def test_a_supported_architecture_is_computed_exactly(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    save_random(tmp_path, architecture, **changes)
    policy, theirs = load(tmp_path), plain_model(tmp_path)
    mix = [SharedPrompt(9, (4, 0, 12)), SharedPrompt(23), SharedPrompt(1, (1,))]
    layout = Packed(mix)
    row_T = ids(layout.tokens)
    ours_TV = logps(policy, states(policy, layout, row_T))
    for own_t, place_t in unpacked(mix, row_T):
        alone_tV = theirs(input_ids=own_t.unsqueeze(0)).logits[0].log_softmax(-1)
        assert torch.allclose(ours_TV[place_t], alone_tV, atol=2e-5, rtol=0)
    TorchEngine(policy, max_batch=1, max_len=64, temperature=1.0)  # refuses a model whose cache it cannot keep


@pytest.mark.parametrize(("architecture", "changes", "named"), REFUSED, ids=[case[0] for case in REFUSED])
def test_an_architecture_that_would_be_computed_wrongly_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any], named: str
) -> None:
    save_random(tmp_path, architecture, **changes)
    with pytest.raises(ModelError, match=rf"{tmp_path}: {named}"):
        load(tmp_path)


@torch.no_grad()
def test_a_sliding_window_works_up_to_its_length_and_is_refused_beyond(tmp_path: Path) -> None:
    save_random(tmp_path, "mistral", num_key_value_heads=2, sliding_window=20)
    policy, theirs = load(tmp_path), plain_model(tmp_path)
    row_T = ids(20)
    ours_TV = logps(policy, states(policy, Packed([20]), row_T))
    assert torch.allclose(ours_TV, theirs(input_ids=row_T.unsqueeze(0)).logits[0].log_softmax(-1), atol=1e-5)
    with pytest.raises(ModelError, match=r"MistralAttention: its sliding window of 20 .* a sequence of 21"):
        states(policy, Packed([4, 21]), ids(25))


def test_attention_dropout_is_refused(tmp_path: Path) -> None:
    policy = load(save_random(tmp_path, "llama", attention_dropout=0.1))
    policy.model.train()
    with pytest.raises(ModelError, match=r"attention dropout .* set attention_dropout to 0"):
        states(policy, Packed([5]), ids(5))


def test_a_forward_call_without_layout_is_refused(gqa: Policy) -> None:
    with pytest.raises(ModelError, match="LlamaAttention: the forward call carried no layout"):
        gqa.model(input_ids=ids(4).unsqueeze(0))


def test_a_mask_that_the_layout_knows_nothing_of_is_refused(gqa: Policy) -> None:
    layout = Packed([4])
    with pytest.raises(ModelError, match="extra masks"):
        gqa.model(input_ids=ids(4).unsqueeze(0), layout=layout, attention_mask=torch.zeros(1, 1, 4, 4))
