"""vLLM is told to take what it needs of a CUDA device and what is free there, so that several roles can share one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.devices import Room
from shoal.errors import ModelError
from shoal.generate.vllm.device_room import CONTEXT, GIB, LOGIT_TENSORS, Needs, share_of, worker_needs
from shoal.generate.vllm.start import VllmSettings, engine_args, hint
from shoal.models.cache_size import Shape

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
WEIGHTS = 15 * GIB
CARD = 80 * GIB


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of seven billion parameters whose weights take no disk."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(WEIGHTS)
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    return tmp_path


def settings(**changes: Any) -> VllmSettings:
    usual = VllmSettings(
        max_batch=64, max_len=2048, temperature=1.0, held="bfloat16", dtype="bfloat16", cuda=True, tensor_parallel=1
    )
    return replace(usual, **changes)


def taken(args: dict[str, Any]) -> float:
    """What vLLM demands to be free when it starts."""
    return float(args["gpu_memory_utilization"]) * CARD


def test_two_workers_start_one_after_the_other_on_one_device(model: Path) -> None:
    """What the first one took is not free any more; by default vLLM would want 92 % of the device for each."""
    first = engine_args(model, settings(), Room(CARD, CARD))
    left = CARD - int(taken(first)) - CONTEXT
    second = engine_args(model, settings(), Room(CARD, left))
    assert second["kv_cache_memory_bytes"] == first["kv_cache_memory_bytes"]
    assert taken(first) <= CARD - CONTEXT
    assert taken(second) <= left - CONTEXT


def test_the_cache_has_room_for_all_answers_at_their_longest_and_takes_no_more(model: Path) -> None:
    shape = Shape.read(model / "config.json")
    assert shape is not None
    longest = 64 * shape.cache(2048, 2)
    cache = engine_args(model, settings(), Room(CARD, CARD))["kv_cache_memory_bytes"]
    assert longest < cache < 1.2 * longest


def test_where_less_is_free_the_cache_is_what_is_left(model: Path) -> None:
    whole = engine_args(model, settings(), Room(CARD, CARD))
    tight = int(taken(whole)) + CONTEXT - 3 * GIB
    args = engine_args(model, settings(), Room(CARD, tight))
    assert args["kv_cache_memory_bytes"] == pytest.approx(whole["kv_cache_memory_bytes"] - 3 * GIB, abs=10)
    assert taken(args) <= tight - CONTEXT + 10


def test_the_cache_that_a_person_asks_for_is_what_vllm_gets_or_an_error_that_says_what_is_missing(model: Path) -> None:
    args = engine_args(model, settings(kv_cache_gb=30.0), Room(CARD, CARD))
    assert args["kv_cache_memory_bytes"] == 30 * GIB
    assert WEIGHTS + 30 * GIB < taken(args) < CARD - CONTEXT
    with pytest.raises(
        ModelError,
        match=r"16.1 GB of weights, .* and 32.2 GB of KV cache .* 42.9 GB are free.*lower workers.kv_cache_gb",
    ):
        engine_args(model, settings(kv_cache_gb=30.0), Room(CARD, 40 * GIB))


def test_a_device_without_room_for_weights_and_one_answer_is_refused_before_anything_is_loaded(model: Path) -> None:
    with pytest.raises(ModelError, match=r"vLLM needs .*give it devices of its own \(CUDA_VISIBLE_DEVICES\)"):
        engine_args(model, settings(), Room(CARD, 16 * GIB))


def test_states_that_wait_for_their_proofs_have_room(model: Path) -> None:
    """A gigabyte and more where many answers of a wide model are generated at once."""
    shape = Shape.read(model / "config.json")
    assert shape is not None
    few, many = (worker_needs(model, "bfloat16", "bfloat16", batch, 2048, 2048, 1) for batch in (1, 1025))
    logits = LOGIT_TENSORS * 1024 * shape.vocab * 4
    assert many.working - few.working - logits == 64 * 1024 * shape.hidden * 2


def test_devices_that_share_a_model_each_hold_their_part(model: Path) -> None:
    one, four = (engine_args(model, settings(tensor_parallel=n), Room(CARD, CARD)) for n in (1, 4))
    assert four["kv_cache_memory_bytes"] == pytest.approx(one["kv_cache_memory_bytes"] / 4, rel=1e-3)
    assert taken(four) < taken(one) / 2
    eight = worker_needs(model, "bfloat16", "bfloat16", 64, 2048, 2048, 8)
    assert eight.cache == four["kv_cache_memory_bytes"], "a device has one head at least"


def test_a_limit_of_gpu_memory_is_filled_by_what_vllm_measures_and_never_more_than_is_free(model: Path) -> None:
    limited = settings(gpu_share=0.5)
    args = engine_args(model, limited, Room(CARD, CARD))
    assert args["gpu_memory_utilization"] == 0.5
    assert "kv_cache_memory_bytes" not in args, "vLLM would ignore the share"
    assert taken(engine_args(model, limited, Room(CARD, 30 * GIB))) <= 30 * GIB - CONTEXT
    with pytest.raises(ModelError, match="vLLM needs"):
        engine_args(model, settings(gpu_share=0.5, kv_cache_gb=30.0), Room(CARD, CARD))


def test_a_model_that_does_not_say_its_shape_gets_what_is_free(model: Path) -> None:
    (model / "config.json").write_text('{"hidden_size": "many"}')
    args = engine_args(model, settings(), Room(CARD, 50 * GIB))
    assert taken(args) == pytest.approx(50 * GIB - CONTEXT)
    assert "kv_cache_memory_bytes" not in args


SIZES = st.integers(0, 100 * GIB)


@given(SIZES, SIZES, SIZES, SIZES, st.one_of(st.none(), SIZES), st.one_of(st.none(), st.floats(0.01, 1.0)))
def test_vllm_is_never_told_of_more_than_is_free(
    free: int, weights: int, working: int, cache: int, asked: int | None, limit: float | None
) -> None:
    room, needs = Room(100 * GIB, free), Needs(weights, working, cache, cache // 7)
    try:
        found = share_of(room, needs, asked, limit)
    except ModelError:
        return
    assert 0 <= found.share * room.total <= free - CONTEXT + 1
    assert weights + working <= found.share * room.total + 1
    if found.cache is not None:
        assert weights + working + found.cache <= found.share * room.total + 1
        assert found.cache == asked or cache // 7 <= found.cache <= cache
    if limit is not None:
        assert found.share <= limit + 1e-9


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "ValueError: Free memory on device cuda:0 (30.1/79.2 GiB) on startup is less than desired GPU memory "
            "utilization (0.5, 39.6 GiB). Decrease GPU memory utilization or reduce GPU memory used.",
            "another process took it meanwhile",
        ),
        ("ValueError: No available memory for the cache blocks.", "lower workers.max_batch"),
        ("ValueError: To serve one request 1 GiB KV cache is needed", "raise workers.kv_cache_gb"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "raise workers.tensor_parallel, lower workers.max_batch"),
        (
            "Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            "give workers.tensor_parallel",
        ),
        ("Model architectures ['NobodysForCausalLM'] are not supported", 'set workers.engine = "torch"'),
    ],
)
def test_what_vllm_says_when_it_does_not_start_leads_to_what_to_change(said: str, fix: str) -> None:
    assert fix in hint(said)
