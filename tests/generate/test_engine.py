"""A completion depends on weights, prompt, seed and sample alone; batching is invisible in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from shoal import toploc
from shoal.errors import ModelError
from shoal.generate import torch_engine as engine_module
from shoal.generate.engine import Completion, Request
from shoal.generate.sampling import NoiseStream
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load
from tests.support.architectures import plain_model, save_random

MAX_LEN = 64
VOCAB = 260
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped heads, and logits wide enough that a wrong cache changes tokens at once."""
    return save_random(tmp_path_factory.mktemp("engine"), "llama", num_key_value_heads=2)


@pytest.fixture(scope="module")
def policy(model_dir: Path) -> Policy:
    return load(model_dir)


@pytest.fixture(scope="module")
def plain(model_dir: Path) -> PreTrainedModel:
    return plain_model(model_dir)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = Random(f"{length}:{seed}")
    return tuple(rng.randrange(2, VOCAB) for _ in range(length))


def mixed_requests(count: int) -> list[Request]:
    """Groups of equal prompts, lone ones, short and long answers, in no order."""
    rng = Random(count)
    requests = []
    for sample in range(count):
        shared = prompt(rng.choice([1, 2, 9, 17, 30]), rng.randrange(3))
        requests.append(Request(shared, 77, sample, rng.choice([1, 2, 5, 12, 30])))
    return requests


def run(
    policy: Policy, requests: Sequence[Request], *, batch: int = 8, temperature: float = 1.0, hidden: bool = False
) -> list[Completion]:
    """All completions in the order of the requests, each exactly once."""
    engine = TorchEngine(policy, max_batch=batch, max_len=MAX_LEN, temperature=temperature)
    done = sorted(engine.generate(requests, hidden=hidden), key=lambda c: c.key)
    assert [c.key for c in done] == list(range(len(requests)))
    return done


def texts(completions: Sequence[Completion]) -> list[tuple[list[int], str]]:
    return [(c.tokens, c.finish) for c in completions]


@contextmanager
def never_ending(policy: Policy) -> Iterator[Policy]:
    yield replace(policy, eos_ids=frozenset())


@contextmanager
def forward_rows(policy: Policy) -> Iterator[list[tuple[int, int]]]:
    """Records the shape (rows, tokens per row) of every forward pass."""
    seen: list[tuple[int, int]] = []

    def note(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        rows, tokens = kwargs["input_ids"].shape
        seen.append((rows, tokens))

    handle = policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@torch.no_grad()
def plain_logits(plain: PreTrainedModel, request: Request, completion: Completion) -> Tensor:
    """Logits of transformers' own forward from which each of the completion's tokens was to be drawn."""
    ids_1T = torch.tensor([[*request.prompt, *completion.tokens]])
    first = len(request.prompt) - 1
    return plain(input_ids=ids_1T).logits[0, first:-1].double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_same_seed_gives_the_same_tokens_for_every_batch_size_and_order(policy: Policy, temperature: float) -> None:
    requests = mixed_requests(90)
    expected = texts(run(policy, requests, batch=64, temperature=temperature))
    assert len({tuple(tokens) for tokens, _ in expected}) > 70
    for batch in (1, 7):
        assert texts(run(policy, requests, batch=batch, temperature=temperature)) == expected
    for seed in range(3):
        order = Random(seed).sample(range(len(requests)), len(requests))
        shuffled = run(policy, [requests[i] for i in order], batch=7 + seed, temperature=temperature)
        assert dict(zip(order, texts(shuffled), strict=True)) == dict(enumerate(expected))


def test_equal_prompts_with_other_samples_differ_and_equal_requests_do_not(policy: Policy) -> None:
    same = [Request(prompt(12), 5, 3, 20)] * 3
    others = [Request(prompt(12), 5, sample, 20) for sample in range(3, 9)]
    assert len({tuple(c.tokens) for c in run(policy, same)}) == 1
    assert len({tuple(c.tokens) for c in run(policy, others)}) == 6


def test_another_seed_gives_other_tokens(policy: Policy) -> None:
    first, second = (texts(run(policy, [Request(prompt(9), seed, 0, 25)])) for seed in (1, 2))
    assert first != second


def test_tokens_are_the_argmax_of_plain_logits_plus_the_noise_of_their_position(
    policy: Policy, plain: PreTrainedModel
) -> None:
    requests = mixed_requests(12)
    for request, completion in zip(requests, run(policy, requests, batch=5, temperature=0.8), strict=True):
        noise = NoiseStream(request.seed, request.sample, policy.vocab)
        for logits_V, token in zip(plain_logits(plain, request, completion), completion.tokens, strict=True):
            uniform_V = (torch.from_numpy(noise.next().astype("float64")) + 0.5) / 2**32
            scores_V = logits_V / 0.8 - (-uniform_V.log()).log()
            assert float(scores_V.max() - scores_V[token]) < 1e-4


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probs_are_those_of_the_distribution_that_was_sampled(
    policy: Policy, plain: PreTrainedModel, temperature: float
) -> None:
    requests = mixed_requests(40)
    for request, completion in zip(requests, run(policy, requests, batch=9, temperature=temperature), strict=True):
        expected_TV = (plain_logits(plain, request, completion) / temperature).log_softmax(-1)
        expected_T = expected_TV.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert torch.tensor(completion.logprobs).double().sub(expected_T).abs().max() < 1e-4


@torch.no_grad()
def test_hidden_states_are_those_each_token_was_drawn_from(policy: Policy, plain: PreTrainedModel) -> None:
    requests = mixed_requests(30)
    for request, completion in zip(requests, run(policy, requests, batch=6, hidden=True), strict=True):
        ids_1T = torch.tensor([[*request.prompt, *completion.tokens]])
        states_TD = plain.base_model(input_ids=ids_1T).last_hidden_state[0]
        first = len(request.prompt) - 1
        assert completion.hidden_TD is not None
        assert completion.hidden_TD.shape == (len(completion.tokens), 64)
        assert (completion.hidden_TD - states_TD[first:-1]).abs().max() < 1e-4


def test_hidden_states_are_kept_on_request_only(policy: Policy) -> None:
    assert all(c.hidden_TD is None for c in run(policy, mixed_requests(5)))


def test_proofs_are_those_of_the_states_and_built_on_the_way(policy: Policy) -> None:
    requests = [Request(prompt(9, n), 7, n, 1 + n * 9 % 54) for n in range(12)]
    with never_ending(policy) as ours:
        for completion in run(ours, requests, batch=5, hidden=True):
            assert completion.hidden_TD is not None
            assert completion.proof == toploc.build(completion.hidden_TD.bfloat16())
        assert all(c.proof and c.hidden_TD is None for c in run(ours, requests[:2]))
        engine = TorchEngine(ours, max_batch=5, max_len=MAX_LEN, temperature=1.0, proofs=False)
        assert all(c.proof == b"" for c in engine.generate(requests[:2]))


def test_a_request_may_come_at_any_time_and_is_answered_as_if_it_had_come_alone(policy: Policy) -> None:
    requests = mixed_requests(40)
    expected = texts(run(policy, requests, batch=64))
    engine = TorchEngine(policy, max_batch=6, max_len=MAX_LEN, temperature=1.0)
    rng, done, submitted = Random(3), list[Completion](), 0
    while submitted < len(requests) or engine.running:
        for _ in range(min(rng.choice([0, 0, 1, 5]), len(requests) - submitted)):
            engine.submit(submitted, requests[submitted])
            submitted += 1
        assert engine.running == submitted - len(done)
        done += engine.step()
    assert texts(sorted(done, key=lambda c: c.key)) == expected
    assert engine.step() == []


def test_generate_refuses_an_engine_that_is_at_work(policy: Policy) -> None:
    engine = TorchEngine(policy, max_batch=6, max_len=MAX_LEN, temperature=1.0)
    engine.submit(0, Request(prompt(4), 0, 0, 4))
    with pytest.raises(ModelError, match="1 requests are running"):
        list(engine.generate([Request(prompt(4), 0, 1, 4)]))
    assert engine.running == 1


def test_a_version_is_loaded_from_its_directory(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    other = save_random(tmp_path, "llama", num_key_value_heads=2, seed=5)
    requests = mixed_requests(6)
    engine = TorchEngine(load(model_dir), max_batch=6, max_len=MAX_LEN, temperature=1.0)
    engine.load(other, "version 1")
    made = texts(sorted(engine.generate(requests), key=lambda c: c.key))
    assert made == texts(run(load(other), requests)) != texts(run(policy, requests))


def test_an_answer_ends_at_its_first_eos_or_at_its_limit(policy: Policy) -> None:
    finishes = set()
    requests = mixed_requests(80)
    frequent = replace(policy, eos_ids=frozenset(range(1, 40)))
    for request, completion in zip(requests, run(frequent, requests, batch=16), strict=True):
        ends = [token in frequent.eos_ids for token in completion.tokens]
        assert not any(ends[:-1])
        assert 1 <= len(completion.tokens) <= request.max_new_tokens
        assert len(completion.logprobs) == len(completion.tokens)
        assert completion.finish == ("eos" if ends[-1] else "length")
        assert ends[-1] or len(completion.tokens) == request.max_new_tokens
        finishes.add(completion.finish)
    assert finishes == {"eos", "length"}


def test_one_new_token_needs_no_decoding_step(policy: Policy) -> None:
    requests = [Request(prompt(n), 1, n, 1) for n in (1, 5, 5, 20)]
    with forward_rows(policy) as seen:
        engine = TorchEngine(policy, max_batch=4, max_len=MAX_LEN, temperature=1.0)
        seen.clear()  # the engine's own check
        completions = list(engine.generate(requests))
    assert sorted(len(c.tokens) for c in completions) == [1, 1, 1, 1]
    assert seen == [(1, 1 + 5 + 20)]


@pytest.mark.parametrize("batch", [1, 5, 32])
def test_no_forward_row_is_spent_on_a_finished_or_absent_sequence(policy: Policy, batch: int) -> None:
    requests = mixed_requests(60)
    engine = TorchEngine(policy, max_batch=batch, max_len=MAX_LEN, temperature=1.0)
    with forward_rows(policy) as seen:
        completions = list(engine.generate(requests))
    decoded = [rows for rows, tokens in seen if tokens == 1 and rows > 0]
    prompts_of_one = sum(len(r.prompt) == 1 for r in requests)
    spent = sum(len(c.tokens) - 1 for c in completions)
    # A prefill of a single one-token prompt has the shape of a decoding step; nothing else may be counted twice.
    assert spent <= sum(decoded) <= spent + prompts_of_one
    assert max(rows for rows, _ in seen) <= batch


def test_decoding_takes_exactly_one_row_a_token_after_the_first(policy: Policy) -> None:
    requests = [Request(prompt(2 + n % 7), 3, n, 1 + n % 13) for n in range(50)]
    engine = TorchEngine(policy, max_batch=8, max_len=MAX_LEN, temperature=1.0)
    with forward_rows(policy) as seen:
        completions = list(engine.generate(requests))
    assert sum(rows for rows, tokens in seen if tokens == 1) == sum(len(c.tokens) - 1 for c in completions)


def test_equal_neighbouring_prompts_are_prefilled_once(policy: Policy) -> None:
    requests = [Request(prompt(10, group), 1, group * 6 + s, 3) for group in range(2) for s in range(6)]
    engine = TorchEngine(policy, max_batch=12, max_len=MAX_LEN, temperature=1.0)
    with forward_rows(policy) as seen:
        list(engine.generate(requests))
    assert seen[0] == (1, 20)


def test_a_prefill_pass_stays_within_its_token_budget(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(prompt(20, n), 1, n, 4) for n in range(9)]
    expected = texts(run(policy, requests))
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 45)
    with forward_rows(policy) as seen:
        assert texts(run(policy, requests)) == expected
    assert max(tokens for _, tokens in seen) == 40
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 3)  # less than any prompt: one at a time, never none
    assert texts(run(policy, requests)) == expected


request_mixes = st.lists(
    st.builds(
        lambda length, kind, sample, new: Request(prompt(length, kind), 9, sample, new),
        st.integers(1, 12),
        st.integers(0, 1),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=14,
)


@FEW
@given(request_mixes, st.integers(1, 9), st.integers(0, 200))
@example([], 1, 0)
def test_every_request_gets_exactly_one_completion_the_one_it_gets_alone(
    policy: Policy, requests: list[Request], batch: int, ends: int
) -> None:
    ending = replace(policy, eos_ids=frozenset(range(ends)))
    together = texts(run(ending, requests, batch=batch))
    assert together == [texts(run(ending, [request], batch=1))[0] for request in requests]


@pytest.mark.parametrize("request_", [Request((), 0, 0, 5), Request(prompt(60), 0, 0, 5), Request(prompt(5), 0, 0, 0)])
def test_a_request_that_cannot_be_served_is_refused_by_number_before_any_work(
    policy: Policy, request_: Request
) -> None:
    engine = TorchEngine(policy, max_batch=2, max_len=MAX_LEN, temperature=1.0)
    with forward_rows(policy) as seen, pytest.raises(ModelError, match="request 1: a prompt of"):
        list(engine.generate([Request(prompt(4), 0, 0, 4), request_]))
    assert seen == []


def test_a_request_that_fills_the_cache_to_the_last_place_is_served(policy: Policy) -> None:
    with never_ending(policy) as endless:
        (completion,) = run(endless, [Request(prompt(40), 0, 0, MAX_LEN - 40)])
    assert (len(completion.tokens), completion.finish) == (24, "length")


def test_an_engine_for_more_positions_than_the_model_has_is_refused(policy: Policy) -> None:
    with pytest.raises(ModelError, match="129 tokens, the model handles 128; lower max_prompt_tokens or"):
        TorchEngine(policy, max_batch=1, max_len=129, temperature=1.0)


def test_greedy_decoding_is_that_of_transformers(policy: Policy, plain: PreTrainedModel) -> None:
    requests = [Request(prompt(n), 0, 0, 20) for n in (1, 4, 13, 13, 30)]
    for request, completion in zip(requests, run(policy, requests, batch=3, temperature=0.0), strict=True):
        ids_1T = torch.tensor([request.prompt])
        out = plain.generate(  # type: ignore[operator]
            ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=20, pad_token_id=0
        )
        assert completion.tokens == out[0, len(request.prompt) :].tolist()


def test_swapped_weights_give_what_a_fresh_engine_with_them_gives(policy: Policy, tmp_path: Path) -> None:
    ours = load(save_random(tmp_path / "old", "llama", num_key_value_heads=2))
    new = load(save_random(tmp_path / "new", "llama", seed=1, num_key_value_heads=2))
    requests = mixed_requests(20)
    engine = TorchEngine(ours, max_batch=6, max_len=MAX_LEN, temperature=1.0)

    def outcome() -> list[tuple[list[int], str]]:
        return texts(sorted(engine.generate(requests), key=lambda c: c.key))

    before = outcome()
    engine.set_weights(new.weights(), "version 1")
    assert outcome() == texts(run(new, requests, batch=6))
    assert outcome() != before
    engine.set_weights(policy.weights(), "version 0")
    assert outcome() == before


def test_a_call_that_was_abandoned_leaves_no_trace_in_the_next(policy: Policy) -> None:
    requests = mixed_requests(20)
    engine = TorchEngine(policy, max_batch=6, max_len=MAX_LEN, temperature=1.0)
    next(engine.generate(mixed_requests(33)))
    again = sorted(engine.generate(requests), key=lambda c: c.key)
    assert texts(again) == texts(run(policy, requests, batch=6))


def test_memory_that_was_never_written_does_not_reach_a_token(policy: Policy) -> None:
    requests = mixed_requests(30)
    expected = run(policy, requests, batch=8)
    torch.use_deterministic_algorithms(True)  # fills memory that torch hands out unwritten with NaN
    try:
        filled = run(policy, requests, batch=8)
    finally:
        torch.use_deterministic_algorithms(False)
    assert texts(filled) == texts(expected)
    assert all(p == p for c in filled for p in c.logprobs)


@torch.no_grad()
def test_weights_that_have_diverged_are_said_not_sampled(model_dir: Path) -> None:
    broken = load(model_dir)
    engine = TorchEngine(broken, max_batch=2, max_len=MAX_LEN, temperature=1.0)
    broken.weights()["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        list(engine.generate([Request(prompt(4), 0, 0, 4)]))


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("diffllama", {"num_key_value_heads": 2}),  # two calls of attention a layer
        ("deepseek_v3", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}),
    ],
)
def test_a_model_whose_cache_is_of_another_shape_works_or_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    latent = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24}
    odd = load(save_random(tmp_path, architecture, **changes | (latent if "deepseek" in architecture else {})))
    with pytest.raises(ModelError, match=rf"(?i){architecture.replace('_', '')}ForCausalLM is not supported"):
        TorchEngine(odd, max_batch=1, max_len=16, temperature=1.0)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen2", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
        ("gemma", {"num_key_value_heads": 1, "head_dim": 16}),
        ("gpt_neox", {}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
        ("phi3", {"num_key_value_heads": 2, "sliding_window": None}),
    ],
)
def test_other_architectures_decode_as_exactly(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    save_random(tmp_path, architecture, **changes)
    other, theirs = load(tmp_path), plain_model(tmp_path)
    requests = mixed_requests(12)
    for request, completion in zip(requests, run(other, requests, batch=5), strict=True):
        expected_TV = plain_logits(theirs, request, completion).log_softmax(-1)
        expected_T = expected_TV.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert torch.tensor(completion.logprobs).double().sub(expected_T).abs().max() < 1e-4


def test_half_precision_generates_with_log_probs_of_its_own_logits(model_dir: Path) -> None:
    half = load(model_dir, "bfloat16")
    completions = run(half, mixed_requests(20))
    assert all(-100 < p <= 1e-4 for c in completions for p in c.logprobs)
