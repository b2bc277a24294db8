"""Length budgets: drawn from the lease, told in the prompt, part of the reward, and drawn again by a validator."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from shoal.config import LengthConfig
from shoal.config_io import check_config
from shoal.errors import ConfigError
from shoal.protocol.rollout import read_parts
from shoal.tasks.length import budgeted, target_of, with_length
from shoal.tasks.source import Score, Task
from tests.support.model_and_checks import World, build_world

BUDGET = LengthConfig(targets=[4, 8, 12], alpha=0.01)
TASK = Task("words", 3, "Spell.", "x", {})


def test_every_target_is_drawn_and_a_seed_draws_the_same_one() -> None:
    drawn = [target_of(BUDGET, seed, 0) for seed in range(300)]
    assert drawn == [target_of(BUDGET, seed, 0) for seed in range(300)]
    assert all(60 < drawn.count(target) < 140 for target in BUDGET.targets)


def test_the_prompt_tells_the_target() -> None:
    assert budgeted(TASK, 8, BUDGET).prompt == "Spell.\nAnswer in 8 tokens."
    assert budgeted(TASK, None, BUDGET) is TASK


@pytest.mark.parametrize(
    ("preset", "targets"), [("long", [2000, 4000, 6000, 8000, 10000]), ("short", [1000, 2000, 3000, 4000])]
)
def test_a_preset_has_the_targets_the_prompt_and_the_reward_of_intellect_2(preset: str, targets: list[int]) -> None:
    length = LengthConfig.model_validate({"preset": preset})
    assert length.targets == targets
    assert budgeted(TASK, 2000, length).prompt == "Spell. Think for 2000 tokens before giving a response."
    assert (length.alpha, length.form) == (0.0003, "exact")
    own = LengthConfig.model_validate({"preset": preset, "targets": [7], "prompt": "{prompt} {target}!"})
    assert (own.targets, budgeted(TASK, 7, own).prompt) == ([7], "Spell. 7!")
    with pytest.raises(ValidationError, match="preset"):
        LengthConfig.model_validate({"preset": "longer"})


@pytest.mark.parametrize(
    ("form", "task", "length", "reward"),
    [
        ("exact", 1.0, 8, 1.0),
        ("exact", 1.0, 5, 0.97),
        ("exact", 1.0, 11, 0.97),
        ("exact", 0.0, 18, -0.1),
        ("max", 1.0, 8, 0.5),
        ("max", 1.0, 3, 0.55),
        ("max", 1.0, 58, 0.0),
        ("max", 0.0, 1, 0.0),
    ],
)
def test_what_a_length_costs(form: str, task: float, length: int, reward: float) -> None:
    config = BUDGET.model_copy(update={"form": form})
    found = with_length(Score(task, parts={"own": task}), length, 8, config)
    assert found.reward == pytest.approx(reward)
    assert found.parts == {"own": task, "task": task, "length": pytest.approx(reward - task)}


def test_a_failed_score_stays_one() -> None:
    failed = Score(None, "took too long")
    assert with_length(failed, 3, 8, BUDGET) is failed


@pytest.fixture(scope="module")
def world() -> World:
    world = build_world("short", max_prompt_tokens=64)
    world.config = world.config.model_copy(update={"length": BUDGET})
    world.checks.config = world.config
    return world


def test_a_validator_draws_the_same_targets_and_finds_the_same_rewards(world: World) -> None:
    honest = world.honest()
    assert world.checks.cheap(honest) is None
    for sample in honest.rollouts:
        target = target_of(BUDGET, honest.lease.seed, sample.group)
        parts = read_parts(sample.parts)
        assert target is not None
        assert sample.reward == pytest.approx(parts["task"] - 0.01 * abs(target - len(sample.completion)), abs=1e-6)
        assert sample.task_reward == parts["task"]


def test_a_worker_that_leaves_the_length_out_is_found(world: World) -> None:
    honest = world.honest()
    cheated = [replace(r, reward=r.task_reward, parts="") for r in honest.rollouts]
    finding = world.checks.rewards(replace(honest, rollouts=cheated))
    assert finding is not None
    assert finding.check == "rewards"


def test_a_worker_that_invents_parts_is_found(world: World) -> None:
    honest = world.honest()
    invented = [replace(honest.rollouts[0], parts='{"task": 1.0, "length": 0.0}'), *honest.rollouts[1:]]
    finding = world.checks.rewards(replace(honest, rollouts=invented))
    assert finding is not None
    assert "parts of a reward" in finding.rule


def test_a_worker_with_another_target_is_found(world: World) -> None:
    honest = world.honest()
    world.checks.config = world.config.model_copy(update={"length": LengthConfig(targets=[5, 6, 7], alpha=0.01)})
    try:
        finding = world.checks.cheap(honest)
    finally:
        world.checks.config = world.config
    assert finding is not None
    assert (finding.check, finding.rule[:10]) == ("tasks", "the prompt")


@pytest.mark.parametrize(
    ("length", "says"),
    [
        ({"targets": [10, 900]}, r"length.targets = \[10, 900\]: the longest answer, sampling.max_new_tokens, is 64"),
        ({"targets": [10], "prompt": "{target} tokens"}, "must contain {prompt}"),
        ({"targets": [10], "prompt": "{prompt}"}, "must contain {target}"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(length: dict[str, object], says: str) -> None:
    tree = {"name": "x", "steps": 1, "tasks": [{"source": "reasoning-gym/chain_sum"}], "length": length}
    with pytest.raises(ConfigError, match=says):
        check_config(tree, "x.toml")
