"""A plan is arithmetic that can be done by hand, and needs nothing of a model but its config.json."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.errors import ConfigError, ModelError
from shoal.models.load import Policy
from shoal.plan.assumptions import DEVICES, assumptions
from shoal.plan.memory import kv_bytes, version_bytes
from shoal.plan.model_shape import ModelShape, find_config, measure_shape, policy_on_meta
from shoal.plan.passes import PassBytes, training_row
from shoal.plan.plan import Plan, RolePlan, make_plan, plan_run, size
from shoal.plan.show import to_json

TASKS = [{"source": "reasoning-gym/spell_backward"}]
PASSES = PassBytes(stored=9 * 10**9, recomputed=3 * 10**9, block_inputs=10**9, recomputing=10**9, prefill=10**9)


def run_of(source: str, **tables: Any) -> RunConfig:
    model = {"source": source, **tables.pop("model", {})}
    return check_config({"name": "a", "steps": 3, "tasks": TASKS, "model": model, **tables}, "test")


@cache
def shape_of(source: str) -> ModelShape:
    return measure_shape(policy_on_meta(find_config(run_of(source)).config, "bfloat16"))


def planned(config: RunConfig, **given: Any) -> Plan:
    """By arithmetic alone."""
    return make_plan(config, shape_of(config.model.source), PASSES, 10**6, assumptions(config, **given), [])


def test_the_shape_of_a_32b_model_follows_from_its_config_alone() -> None:
    shape = shape_of("models/QwQ-32B")
    assert shape.parameters == 32_763_876_352
    assert (shape.blocks, shape.hidden, shape.vocab) == (64, 5120, 152064)
    assert shape.kv_values == 64 * 2 * 8 * 128
    assert shape.query_values == 64 * 40 * 128
    assert shape.outside_parameters == 2 * 152064 * 5120 + 5120
    block = 5120 * (2 * 5120 + 2 * 1024) + 3 * 5120 * 27648  # four projections of attention, three of the MLP
    assert shape.flops_per_token == 2 * 64 * block


def test_a_model_that_is_here_is_taken_from_its_directory(tiny_dir: Path, tiny_policy: Policy) -> None:
    config = run_of(str(tiny_dir))
    found = find_config(config)
    assert found.note == ""
    shape = measure_shape(policy_on_meta(found.config, "float32"))
    assert shape.parameters == sum(p.numel() for p in tiny_policy.model.parameters())
    assert shape.max_positions == tiny_policy.max_positions


def test_a_directory_needs_nothing_but_a_config_json(tiny_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_dir / "config.json").read_bytes())
    assert measure_shape(policy_on_meta(find_config(run_of(str(tmp_path))).config, "float32")).blocks == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no config.json there"),
        ("{", "not a usable config"),
        ('{"model_type": "no-such"}', "not a usable config"),
    ],
)
def test_a_model_that_nothing_is_known_of_is_an_error_that_names_it(
    content: str | None, says: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=says) as error:
        find_config(run_of(str(tmp_path)))
    assert str(tmp_path) in str(error.value)


def test_a_version_is_as_large_on_disk_as_the_plan_says(tiny_dir: Path, tiny_policy: Policy, tmp_path: Path) -> None:
    save_file(tiny_policy.weights(), tmp_path / "v.safetensors")
    shape = measure_shape(policy_on_meta(find_config(run_of(str(tiny_dir))).config, "float32"))
    assert (tmp_path / "v.safetensors").stat().st_size == pytest.approx(version_bytes(run_of("tiny"), shape), rel=0.1)


def test_the_fullest_row_fills_the_budget_and_does_not_exceed_it() -> None:
    config = run_of("tiny", sampling={"group_size": 4, "max_new_tokens": 21, "max_prompt_tokens": 10})
    for budget in (31, 90, 95, 180, 1000):
        row = training_row(
            config.model_copy(update={"train": config.train.model_copy(update={"token_budget": budget})})
        )
        tokens = sum(family.prompt + sum(family.answers) for family in row)
        assert budget - 30 < tokens <= budget


def test_a_role_that_does_not_fit_says_what_is_missing_and_what_would_fit() -> None:
    workers = {"max_batch": 64, "groups_per_submission": 1}
    sampling = {"max_new_tokens": 7168, "max_prompt_tokens": 1024, "group_size": 16}
    train, bfloat16 = {"token_budget": 8192}, {"dtype": "bfloat16"}
    config = run_of("qwen2.5-7b", model=bfloat16, sampling=sampling, train=train, workers=workers)
    plan = planned(config, worker_gpu="4090")
    worker = next(role for role in plan.roles if role.role == "worker")
    assert not worker.fits
    one = kv_bytes(config, plan.shape, "bfloat16")
    assert one == 28 * 2 * 4 * 128 * 8192 * 2
    beside = worker.memory.total - worker.memory.device["KV cache"]
    fitting = (DEVICES["4090"].memory - plan.assumed.reserve - beside) // one
    assert worker.hints == (f"workers.max_batch = {fitting} would fit: a sequence of 8,192 tokens takes {size(one)}",)
    smaller = config.model_copy(update={"workers": config.workers.model_copy(update={"max_batch": int(fitting)})})
    again = next(role for role in planned(smaller, worker_gpu="4090").roles if role.role == "worker")
    assert again.fits
    assert "to spare" in again.verdict


def test_a_worker_that_is_split_over_devices_is_planned_for_each_of_them() -> None:
    def worker(devices: int) -> tuple[RolePlan, float]:
        sampling = {"max_new_tokens": 7168, "max_prompt_tokens": 1024, "group_size": 8}
        workers = {"tensor_parallel": devices, "max_batch": 8}
        train = {"token_budget": 8192}
        plan = planned(run_of("qwq-32b", model={"dtype": "bfloat16"}, sampling=sampling, train=train, workers=workers))
        return next(role for role in plan.roles if role.role == "worker"), plan.time.tokens_per_s

    (alone, slow), (split, fast) = worker(1), worker(4)
    for item in ("weights", "KV cache"):
        assert split.memory.device[item] == pytest.approx(alone.memory.device[item] / 4)
    assert split.memory.device["logits"] == alone.memory.device["logits"]
    assert (alone.fits, split.fits) == (False, True)
    assert "each of 4 80 GB devices" in split.verdict
    assert fast > 3 * slow


def test_vllms_copy_beside_the_validators_counts_where_it_is_asked_for_and_is_said_where_auto_means_it() -> None:
    """Under auto torch takes the place of a vLLM that has no room, so a validator fits without it."""

    def validator(engine: str, gpu: str = "h100") -> RolePlan:
        config = run_of("qwen2.5-7b", model={"dtype": "bfloat16"}, audit={"engine": engine})
        return next(role for role in planned(config, worker_gpu=gpu).roles if role.role == "validator")

    weights = validator("torch").memory.device["weights"]
    asked, auto = validator("vllm"), validator("auto")
    assert asked.memory.device["vLLM for states"] > weights
    assert asked.memory.total > 2 * weights
    assert auto.memory.total == validator("torch").memory.total
    (said,) = auto.hints
    assert said.startswith("vLLM for states, where it is installed, takes ")
    assert size(asked.memory.device["vLLM for states"]) in said
    (said,) = validator("auto", "l40s").hints
    assert said.endswith(": torch computes them")
    assert not validator("vllm", "l40s").fits
    assert validator("auto", "l40s").fits
    assert (validator("torch").hints, validator("auto", "cpu").hints) == ((), ())


def test_workers_that_are_too_few_are_the_bottleneck_and_as_many_as_needed_are_not() -> None:
    config = run_of("qwen2.5-7b", model={"dtype": "bfloat16"}, workers={"count": 1})
    plan = planned(config, answer_tokens=64.0)
    assert plan.time.workers_needed > 1
    assert plan.bottleneck == "workers"
    enough = config.workers.model_copy(update={"count": plan.time.workers_needed})
    assert planned(config.model_copy(update={"workers": enough}), answer_tokens=64.0).bottleneck != "workers"


def test_a_narrow_link_becomes_the_bottleneck() -> None:
    config = run_of("qwen2.5-7b", model={"dtype": "bfloat16"})
    assert planned(config, mbit=1.0).bottleneck == "network of the relays"
    assert planned(config, mbit=1.0).time.update == pytest.approx(2 * 0.02 * 2 * 7_615_616_512 * 8 / 1e6)


def test_float32_versions_travel_whole_and_bfloat16_ones_as_deltas() -> None:
    whole = planned(run_of("qwen2.5-7b"))
    assert whole.sizes.update == whole.sizes.version == 4 * 7_615_616_512
    delta = planned(run_of("qwen2.5-7b", model={"dtype": "bfloat16"}))
    assert delta.sizes.update == pytest.approx(0.02 * 2 * 7_615_616_512)


def test_the_json_has_every_role_and_the_assumptions() -> None:
    told = json.loads(to_json(planned(run_of("qwen2.5-7b"), gpu="a100")))
    assert list(told["roles"]) == ["trainer", "worker", "validator", "evaluator", "origin", "relay", "coordinator"]
    assert told["assumptions"]["trainer"]["name"] == "a100"
    assert told["roles"]["trainer"]["memory_bytes"] == sum(told["roles"]["trainer"]["memory"].values())


def test_a_device_that_is_unknown_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"--worker-gpu h1000: unknown; give one of .*h100"):
        assumptions(run_of("tiny"), worker_gpu="h1000")


def test_a_sequence_longer_than_the_model_handles_is_noted(tiny_dir: Path) -> None:
    config = run_of(str(tiny_dir), sampling={"max_new_tokens": 2000}, train={"token_budget": 4096})
    assert any("the model handles 1,024" in note for note in plan_run(config, assumptions(config)).notes)


def test_a_run_that_trains_adapters_needs_the_base_and_little_more() -> None:
    whole = run_of("models/QwQ-32B", model={"dtype": "bfloat16"}, train={"ranks": 8})
    config = run_of("models/QwQ-32B", model={"dtype": "bfloat16"}, train={"ranks": 8, "lora": {"rank": 8, "alpha": 16}})
    shape = measure_shape(policy_on_meta(find_config(config).config, "bfloat16"), config.train.lora)
    attention = 2 * (5120 + 5120) + 2 * (5120 + 1024)
    assert shape.adapter_parameters == 64 * 8 * (attention + 3 * (5120 + 27648))
    plan = make_plan(config, shape, PASSES, 10**6, assumptions(config), [])
    trainer = plan.roles[0].memory
    assert trainer is not None
    assert trainer.device["weights"] == -(-shape.parameters // 8) * 2 + -(-shape.adapter_parameters // 8) * 4
    assert trainer.device["moments"] == 2 * trainer.device["gradients"] == 8 * -(-shape.adapter_parameters // 8)
    assert trainer.device["reference"] == 0
    assert plan.sizes.update == 4 * shape.adapter_parameters
    assert plan.sizes.version == planned(whole).sizes.version
    disk = plan.roles[0].traffic.disk
    assert disk["versions"] == plan.sizes.version + config.keep.versions * plan.sizes.update
    assert disk["checkpoints, one being written"] == (config.keep.checkpoints + 1) * 12 * shape.adapter_parameters


def test_a_plan_with_adapters_is_made_from_a_config_alone(tiny_dir: Path) -> None:
    config = run_of(str(tiny_dir), train={"lora": {"rank": 4, "alpha": 8}})
    plan = plan_run(config, assumptions(config))
    assert plan.sizes.update == 4 * plan.shape.adapter_parameters > 0
