"""vLLM under our engine's interface gives the tokens, log-probs and proofs that our own engine gives."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")

from shoal import toploc
from shoal.errors import ModelError
from shoal.generate.decoding import Decoding
from shoal.generate.engine import Completion, Request
from shoal.generate.torch_engine import TorchEngine
from shoal.generate.vllm.death_watch import DeathWatch, watch_for_death
from shoal.generate.vllm.engine import VllmEngine
from shoal.generate.vllm.parent_watch import is_there
from shoal.models.load import Policy, load, outline
from shoal.models.weights import write_weights
from tests.vllm.conftest import settings_of

pytestmark = pytest.mark.xdist_group("engine")


def requests_of(count: int, longest: int = 150, seed: int = 1 << 63) -> list[Request]:
    """Groups of equal prompts, short and longer than a chunk of prefill; the seed has its highest bit set."""
    rng = Random(count)
    prompts = [
        tuple(rng.randrange(2, 50) for _ in range(rng.choice([1, 5, 40, 90, 100]))) for _ in range(count // 6 + 1)
    ]
    return [Request(prompts[n // 6], seed + 7, n, rng.choice([1, 31, 32, 33, longest])) for n in range(count)]


def answers(engine: Any, requests: list[Request]) -> list[Completion]:
    return sorted(engine.generate(requests), key=lambda c: c.key)


def ours(policy: Policy, requests: list[Request], temperature: float = 1.0) -> list[Completion]:
    engine = TorchEngine(policy, max_batch=32, max_len=256, temperature=temperature)
    return sorted(engine.generate(requests, hidden=True), key=lambda c: c.key)


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    for own, other in zip(found, expected, strict=True):
        assert (own.key, own.tokens, own.finish) == (other.key, other.tokens, other.finish)
        assert max(abs(a - b) for a, b in zip(own.logprobs, other.logprobs, strict=True)) < 2e-4
        assert other.hidden_TD is not None
        assert toploc.accepts(toploc.verify(other.hidden_TD.bfloat16(), own.proof))


def nudged(folder: Path, to: Path, seed: int) -> Path:
    """Another version of a model: every weight is off by a step of Adam, and written as a version is."""
    policy, generator = load(folder), torch.Generator().manual_seed(seed)
    to.mkdir()
    policy.model.config.save_pretrained(to)
    weights = policy.weights()
    write_weights(to, {n: w + 3e-3 * torch.randn(w.shape, generator=generator).sign() for n, w in weights.items()})
    policy.tokenizer.save_pretrained(to)
    return to


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_tokens_log_probs_and_proofs_are_those_of_our_own_engine(
    engine: VllmEngine, cached: list[int], tiny: Path, temperature: float
) -> None:
    requests = requests_of(90)
    before = engine.counts()[1]
    engine.temperature = temperature
    try:
        found = answers(engine, requests)
    finally:
        engine.temperature = 1.0
    assert sum(len(c.tokens) for c in found) > 3000
    assert_same(found, ours(load(tiny), requests, temperature))
    held, resumed = engine.counts()
    assert held <= 32, "a state was kept longer than a chunk"
    assert resumed > before, "nothing was preempted: the test tested nothing"
    assert max(cached) >= 64, "nothing was taken from the prefix cache: the test tested nothing"


def test_a_request_may_come_at_any_time(engine: VllmEngine, tiny: Path) -> None:
    requests, rng, done, submitted = requests_of(20), Random(5), list[Completion](), 0
    while submitted < len(requests) or engine.running:
        for _ in range(min(rng.choice([0, 1, 4]), len(requests) - submitted)):
            engine.submit(submitted, requests[submitted])
            submitted += 1
        done += engine.step()
    assert_same(sorted(done, key=lambda c: c.key), ours(load(tiny), requests))


def test_the_rest_of_an_answer_is_drawn_with_the_noise_of_its_places(engine: VllmEngine) -> None:
    whole = Request((5, 6, 7), 99, 3, 80)
    (expected,) = answers(engine, [whole])
    rest = replace(whole, prompt=(*whole.prompt, *expected.tokens[:37]), max_new_tokens=43, position=37)
    (found,) = answers(engine, [rest])
    assert [*expected.tokens[:37], *found.tokens] == expected.tokens


def test_a_request_that_is_dropped_is_not_answered_and_the_others_are(engine: VllmEngine, tiny: Path) -> None:
    requests = requests_of(8)
    for key, request in enumerate(requests):
        engine.submit(key, request)
    engine.drop(3)
    done = list[Completion]()
    while engine.running:
        done += engine.step()
    expected = [c for c in ours(load(tiny), requests) if c.key != 3]
    assert_same(sorted(done, key=lambda c: c.key), expected)


def test_what_is_aborted_leaves_nothing_behind(engine: VllmEngine, tiny: Path) -> None:
    next(engine.generate(requests_of(12)))
    assert engine.running == 0
    requests = requests_of(6)
    assert_same(answers(engine, requests), ours(load(tiny), requests))


def test_three_versions_are_loaded_one_after_the_other_without_a_restart(
    engine: VllmEngine, tiny: Path, tmp_path: Path
) -> None:
    requests = requests_of(12, 40)
    folders = [nudged(tiny, tmp_path / f"v{n}", n) for n in (1, 2)]
    texts = []
    for number, folder in enumerate([*folders, tiny]):
        engine.load(folder, f"version {number + 1}")
        found = answers(engine, requests)
        assert_same(found, ours(load(folder), requests))
        texts.append([c.tokens for c in found])
    assert texts[0] != texts[1] != texts[2]


@pytest.fixture
def cached(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of its prompt each answer took from the prefix cache, in the order in which they end."""
    found, step = list[int](), engine._engine.step

    def noted() -> Any:
        outputs = step()
        found.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    monkeypatch.setattr(engine._engine, "step", noted)
    return found


def test_what_is_cached_of_prompts_is_used_and_never_that_of_another_version(
    engine: VllmEngine, cached: list[int], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, other = tuple(range(2, 50)) * 2, nudged(tiny, tmp_path / "v1", 1)
    requests = [Request(prompt, 7, number, 40) for number in range(4)]
    engine.load(tiny, "version 0")
    answers(engine, requests[:1])
    assert cached == [0]
    assert_same(answers(engine, requests), ours(load(tiny), requests))
    assert min(cached[1:]) >= 64, "nothing was taken from the cache: the test tested nothing"
    engine.load(other, "version 1")
    cached.clear()
    assert_same(answers(engine, requests[:1]), ours(load(other), requests[:1]))
    assert cached == [0]
    with monkeypatch.context() as without:
        without.setattr(engine._engine, "reset_prefix_cache", lambda: True)
        engine.load(tiny, "version 2")
    (stale,) = answers(engine, requests[:1])
    assert cached[-1] >= 64
    with pytest.raises(AssertionError):  # what the cache is emptied for
        assert_same([stale], ours(load(tiny), requests[:1]))
    engine.load(tiny, "version 0")
    assert_same(answers(engine, requests), ours(load(tiny), requests))


def test_a_stale_head_is_refused_and_no_request_is_taken_until_a_version_is_right(
    engine: VllmEngine, tiny: Path, tmp_path: Path
) -> None:
    other = nudged(tiny, tmp_path / "v1", 1)
    engine._engine.collective_rpc("plant_stale_head", args=(True,))
    try:
        with pytest.raises(ModelError, match=r"version 1: vLLM's fingerprint of it differs from its files at lm_head"):
            engine.load(other, "version 1")
        with pytest.raises(ModelError, match="no version loaded"):
            engine.submit(0, requests_of(1)[0])
    finally:
        engine._engine.collective_rpc("plant_stale_head", args=(False,))
    engine.load(tiny, "version 0")
    requests = requests_of(6)
    assert_same(answers(engine, requests), ours(load(tiny), requests))


STALE = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
STALE += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


@pytest.mark.parametrize("stale", STALE)
def test_one_stale_matrix_is_refused_by_name(engine: VllmEngine, tiny: Path, tmp_path: Path, stale: str) -> None:
    other, name = nudged(tiny, tmp_path / "v1", 1), f"model.layers.1.{stale}.weight"
    engine._engine.collective_rpc("plant_stale_matrix", args=(name, str(tiny), "float32"))
    try:
        with pytest.raises(ModelError, match=rf"version 1: vLLM's fingerprint .* differs from its files at {name};"):
            engine.load(other, "version 1")
    finally:
        engine._engine.collective_rpc("plant_stale_matrix", args=("", "", ""))
        engine.load(tiny, "version 0")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda own: {name: w for name, w in own.items() if "layers.1." not in name}, r"lacks model\.layers\.1\."),
        (lambda own: {**own, "model.layers.9.mlp.weight": own["model.norm.weight"]}, r"has model\.layers\.9\."),
        (lambda own: {name: w[:16] for name, w in own.items()}, r"model\..* has shape \(16, .*expected"),
    ],
    ids=["a layer less", "a layer more", "another shape"],
)
def test_a_version_that_does_not_fit_is_refused_by_name_and_the_one_before_goes_on(
    engine: VllmEngine, tiny: Path, tmp_path: Path, changed: Any, said: str
) -> None:
    policy = load(tiny)
    write_weights(tmp_path, changed(policy.weights()))
    with pytest.raises(ModelError, match=f"version 7: {said}"):
        engine.load(tmp_path, "version 7")
    requests = requests_of(6)
    assert_same(answers(engine, requests), ours(policy, requests))


def test_states_are_not_handed_out_and_the_error_says_which_engine_does(engine: VllmEngine) -> None:
    with pytest.raises(ModelError, match=r'use workers\.engine = "torch"'):
        engine.submit(0, requests_of(1)[0], hidden=True)
    assert engine.running == 0


def core_of(engine: VllmEngine) -> int:
    return int(engine._engine.engine_core.resources.engine_manager.processes[0].pid)


def test_an_engine_core_that_is_killed_and_killed_once_more_while_it_starts_gives_the_same_answers(
    engine: VllmEngine, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_of(12)
    said: list[str] = engine.said  # type: ignore[attr-defined]
    before = len(said)
    for key, request in enumerate(requests):
        engine.submit(key, request)
    done = list[Completion]()
    while len(done) < 2:
        done += engine.step()
    killed = list[int]()

    def kill_first(client: Any) -> DeathWatch:
        watch = watch_for_death(client)
        if not killed:
            killed.append(core_of(engine))
            os.kill(killed[0], signal.SIGKILL)
        return watch

    monkeypatch.setattr("shoal.generate.vllm.engine.watch_for_death", kill_first)
    os.kill(core_of(engine), signal.SIGKILL)
    while engine.running:
        done += engine.step()
    assert killed
    assert sum("vLLM died" in one for one in said[before:]) == 2
    assert_same(sorted(done, key=lambda c: c.key), ours(load(tiny), requests))


@pytest.mark.parametrize("during", ["a step", "a load"])
def test_an_engine_core_that_is_stuck_is_killed_and_what_was_asked_is_done(
    engine: VllmEngine, tiny: Path, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, so it is there, and answers nothing: a worker would wait for ever, with its heart beating."""
    requests, core = requests_of(4), core_of(engine)
    said: list[str] = engine.said  # type: ignore[attr-defined]
    before = len(said)
    watch: DeathWatch = engine._watch
    monkeypatch.setattr(watch, "within", lambda _seconds, what: DeathWatch.within(watch, 3.0, what))
    os.kill(core, signal.SIGSTOP)
    if during == "a load":
        engine.load(tiny, "version 0")
    for key, request in enumerate(requests):
        engine.submit(key, request)
    done = list[Completion]()
    while engine.running:
        done += engine.step()
    assert ["did not answer for 3 s" in text for text in said[before:]] == [True]
    assert core_of(engine) != core
    assert not is_there(core)
    assert_same(sorted(done, key=lambda c: c.key), ours(load(tiny), requests))


def test_a_prefix_cache_that_is_not_emptied_never_answers_for_another_version(
    engine: VllmEngine, tiny: Path, tmp_path: Path
) -> None:
    """A request that vLLM knows and the engine does not holds blocks, as one would that was not aborted in time."""
    requests, core = requests_of(6), core_of(engine)
    engine.submit(0, Request((5, 6, 7), 1, 0, 150))
    engine.step()
    engine._submitted.clear()
    other = nudged(tiny, tmp_path / "v1", 1)
    engine.load(other, "version 1")
    assert any("did not empty its prefix cache" in said for said in engine.said)  # type: ignore[attr-defined]
    assert core_of(engine) != core
    assert_same(answers(engine, requests), ours(load(other), requests))
    engine.load(tiny, "version 0")


def start_with(folder: Path, **changes: Any) -> None:
    VllmEngine(
        folder, outline(folder), settings_of(**changes), origin="version 0", reader=lambda _: {}, say=lambda _: None
    ).close()


def test_a_vllm_of_the_cpu_does_not_pretend_to_be_a_gpu(tiny: Path) -> None:
    with pytest.raises(ModelError, match=r"version 0: this vLLM computes on cpu, and the worker on a CUDA device"):
        start_with(tiny, cuda=True)


def test_a_cache_that_has_no_room_for_one_answer_is_an_error_that_says_what_to_change(tiny: Path) -> None:
    with pytest.raises(ModelError, match=r"version 0: vLLM does not start with it: .*; .*workers.kv_cache_gb"):
        start_with(tiny, kv_cache_gb=1e-5)


def test_a_cache_larger_than_the_machine_is_an_error_that_says_what_to_change(tiny: Path) -> None:
    with pytest.raises(ModelError, match=r"vLLM does not start with it: .*memory.*; .*lower workers.kv_cache_gb"):
        start_with(tiny, kv_cache_gb=100_000.0)


def test_a_model_that_vllm_does_not_know_is_an_error_that_names_the_engine_that_may(tiny: Path, tmp_path: Path) -> None:
    policy = load(tiny)
    policy.model.config.architectures = ["NobodysForCausalLM"]
    policy.model.config.save_pretrained(tmp_path)
    write_weights(tmp_path, policy.weights())
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r'NobodysForCausalLM.*set workers.engine = "torch"'):
        start_with(tmp_path)


def test_requests_with_settings_of_their_own_and_streamed_ones_are_as_with_our_engine(engine: Any, tiny: Path) -> None:
    settings = [Decoding(0.0), Decoding(0.7), Decoding(1.0, 0.5), None]
    requests = [
        replace(request, decoding=settings[n % 4], streamed=n % 3 > 0) for n, request in enumerate(requests_of(12, 40))
    ]
    for key, request in enumerate(requests):
        engine.submit(key, request)
    done, told = list[Completion](), dict[int, list[int]]()
    while engine.running:
        done += engine.step()
        for key, tokens, logprobs in engine.so_far():
            before = told.get(key, [])
            assert len(tokens) == len(logprobs)
            assert list(tokens[: len(before)]) == before
            told[key] = list(tokens)
    found = sorted(done, key=lambda c: c.key)
    assert_same(found, ours(load(tiny), requests))
    assert set(told) == {key for key, request in enumerate(requests) if request.streamed}
    assert any(1 < len(tokens) < len(found[key].tokens) for key, tokens in told.items())
    assert all(found[key].tokens[: len(tokens)] == tokens for key, tokens in told.items())
