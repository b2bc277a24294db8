"""One training step: the right direction, whatever the packing, and nothing at all when the numbers are not finite."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from shoal.config import RunConfig
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load
from shoal.protocol.rollout import Rollout
from shoal.rl.advantages import group_advantages
from shoal.train.batch import Group, pack
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
from shoal.train.scorer import logprobs
from shoal.train.step import StepResult, learning_rate, train_step
from tests.support.architectures import save_random
from tests.support.roles_in_process import make_config
from tests.support.submissions import make_rollout

Make = Callable[[list[torch.nn.Parameter]], AdamW]
TEMPERATURE = 0.8


def settings(**changes: Any) -> RunConfig:
    train = {"lr": 0.3, "grad_clip": 1e9, "loss": {"kl_coef": 0.0, "entropy_coef": 0.0}} | changes
    return make_config("tiny", train=train, sampling={"temperature": TEMPERATURE, "max_new_tokens": 12})


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("step"), "llama", num_key_value_heads=2)


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    return load(model_dir)


@pytest.fixture(scope="module")
def rollouts(model_dir: Path) -> list[Group]:
    """Groups of real completions of uneven length, rewarded at random."""
    rng = Random(5)
    policy = load(model_dir)
    engine = TorchEngine(policy, max_batch=16, max_len=40, temperature=TEMPERATURE)
    groups = []
    for number in range(6):
        prompt = [rng.randrange(2, 260) for _ in range(rng.choice([1, 4, 11]))]
        requests = [Request(tuple(prompt), number, sample, rng.choice([1, 3, 12])) for sample in range(4)]
        done = sorted(engine.generate(requests), key=lambda c: c.key)
        samples = [
            make_rollout(number, c.key, prompt=prompt, completion=c.tokens, logprobs=c.logprobs, finish=c.finish)
            for c in done
        ]
        rewards_1S = torch.tensor([[rng.random() for _ in samples]])
        groups.append(Group(samples[0].prompt, samples, group_advantages(rewards_1S)[0].tolist(), 0))
    return groups


class Sgd(AdamW):
    """Moves weights along the gradient itself, so that weights compare as gradients do."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            old = parameter.clone()
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])
            parameter.grad.copy_(old)


def sgd(parameters: list[torch.nn.Parameter]) -> AdamW:
    return Sgd(parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)


def adamw(parameters: list[torch.nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)


def stepped(
    policy: Policy, groups: Sequence[Group], config: RunConfig, make: Make = sgd, reference: Policy | None = None
) -> StepResult:
    return train_step(alone(policy, reference, make(list(policy.model.parameters()))), groups, config, 0)


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.weights().items()}


def after(policy: Policy, groups: Sequence[Group], config: RunConfig) -> dict[str, torch.Tensor]:
    """Weights after one step from the same start, leaving the policy as it was."""
    moved = replace(policy, model=copy.deepcopy(policy.model))
    stepped(moved, groups, config)
    return weights_of(moved)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def total_logp(policy: Policy, prompt: list[int], completion: list[int]) -> float:
    sample = make_rollout(prompt=prompt, completion=completion, logprobs=[0.0] * len(completion))
    (batch,) = pack([Group(sample.prompt, [sample], [0.0], 0)], 256)
    with torch.no_grad():
        return float(logprobs(policy, batch, TEMPERATURE)[0].sum())


@pytest.mark.parametrize("family", ["two_sided", "cispo", "gspo", "dppo"])
def test_the_gradient_does_not_depend_on_how_samples_were_packed(
    policy: Policy, rollouts: list[Group], family: str
) -> None:
    loss = {"family": family, "kl_coef": 0.0, "entropy_coef": 0.01}
    whole, split = settings(loss=loss, token_budget=4096), settings(loss=loss, token_budget=36)
    assert len(pack(rollouts, 4096)) == 1
    assert len(pack(rollouts, 36)) >= 4
    together, apart = after(policy, rollouts, whole), after(policy, rollouts, split)
    assert distance(together, weights_of(policy)) > 0.01
    assert distance(together, apart) < 1e-6


def test_the_gradient_does_not_depend_on_the_order_of_groups_or_samples(policy: Policy, rollouts: list[Group]) -> None:
    expected = after(policy, rollouts, settings())
    rng = Random(1)
    for _ in range(3):
        mixed = []
        for group in rng.sample(rollouts, len(rollouts)):
            order = rng.sample(range(4), 4)
            mixed.append(
                replace(
                    group, samples=[group.samples[i] for i in order], advantages=[group.advantages[i] for i in order]
                )
            )
        assert distance(after(policy, mixed, settings()), expected) < 1e-6


def test_every_token_weighs_the_same(policy: Policy, rollouts: list[Group]) -> None:
    # The gradient of two groups together is the token-weighted mean of their own gradients.
    before = weights_of(policy)
    one, other = rollouts[0], rollouts[1]
    tokens = [sum(len(s.completion) for s in group.samples) for group in (one, other)]
    assert tokens[0] != tokens[1]
    alone = [after(policy, [group], settings()) for group in (one, other)]
    both = after(policy, [one, other], settings())
    for name, start in before.items():
        first, second = (moved[name] - start for moved in alone)
        expected = (tokens[0] * first + tokens[1] * second) / sum(tokens)
        assert torch.allclose(both[name] - start, expected, atol=1e-6)


def test_the_gradient_is_that_of_the_plain_policy_gradient(policy: Policy, rollouts: list[Group]) -> None:
    # On the first update every ratio is 1, so the loss is -mean(advantage x logp), here written without our code.
    before = weights_of(policy)
    plain = copy.deepcopy(policy.model)
    plain.set_attn_implementation("sdpa")
    terms = []
    for group in rollouts:
        for sample, advantage in zip(group.samples, group.advantages, strict=True):
            ids_1T = torch.tensor([[*group.prompt, *sample.completion]])
            logits_TV = plain(input_ids=ids_1T).logits[0, len(group.prompt) - 1 : -1] / TEMPERATURE
            target_T1 = torch.tensor(sample.completion)[:, None]
            terms.append(advantage * logits_TV.log_softmax(-1).gather(1, target_T1)[:, 0])
    torch.autograd.backward(-torch.cat(terms).mean())
    moved = after(policy, rollouts, settings())
    lr = settings().train.lr
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(moved[name], before[name] - lr * parameter.grad, atol=1e-6), name


def test_the_right_answer_becomes_likelier_and_the_wrong_one_less(policy: Policy) -> None:
    prompt, right, wrong = [10, 20, 30], [40, 41, 1], [50, 51, 1]
    samples = [make_rollout(0, i, prompt=prompt, completion=c) for i, c in enumerate((right, wrong))]
    group = Group(
        samples[0].prompt, samples, [1.0, -1.0], -1
    )  # of an older version: their log-probs are not this policy's
    before = [total_logp(policy, prompt, completion) for completion in (right, wrong)]
    stepped(policy, [group], settings(lr=1e-3), adamw)
    rise, fall = (
        total_logp(policy, prompt, completion) - old for completion, old in zip((right, wrong), before, strict=True)
    )
    assert rise > 0.01
    assert fall < -0.01


@torch.no_grad()
def poison(policy: Policy, name: str = "model.layers.0.mlp.up_proj.weight") -> None:
    policy.weights()[name][0, 0] = float("nan")


def test_a_gradient_that_is_not_finite_changes_no_weight_and_no_moment(policy: Policy, rollouts: list[Group]) -> None:
    optimizer = adamw(list(policy.model.parameters()))
    train_step(alone(policy, None, optimizer), rollouts, settings(), 0)
    poison(policy)
    before = weights_of(policy)
    moments = copy.deepcopy([state["exp_avg"] for state in optimizer.state.values()])
    result = train_step(alone(policy, None, optimizer), rollouts, settings(), 1)
    assert (result.skipped, result.losses) == (1, [])
    assert all(torch.equal(before[name], now) or before[name].isnan().any() for name, now in policy.weights().items())
    assert int(sum(tensor.isnan().sum() for tensor in policy.weights().values())) == 1
    now = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, now, strict=True))


def test_an_infinite_advantage_skips_its_own_optimizer_step_only(policy: Policy, rollouts: list[Group]) -> None:
    bad = replace(rollouts[0], advantages=[float("inf"), *rollouts[0].advantages[1:]])
    result = stepped(policy, [bad, rollouts[1]], settings(optimizer_steps=2))
    assert (result.skipped, len(result.losses)) == (1, 1)
    assert all(tensor.isfinite().all() for tensor in policy.weights().values())


def test_metrics_of_a_skipped_step_are_still_numbers_or_nan(policy: Policy, rollouts: list[Group]) -> None:
    poison(policy)
    metrics = stepped(policy, rollouts, settings()).metrics()
    assert metrics["grad_norm"] == 0.0
    assert metrics["loss_tokens"] == sum(len(s.completion) for g in rollouts for s in g.samples)


def test_the_first_update_has_ratio_one_and_later_ones_are_measured_from_before_it(
    policy: Policy, rollouts: list[Group]
) -> None:
    single = stepped(replace(policy, model=copy.deepcopy(policy.model)), rollouts, settings(lr=0.01), adamw)
    assert single.metrics()["ratio_max"] == 1.0
    assert single.metrics()["clip_high"] == single.metrics()["clip_low"] == 0.0
    several = stepped(policy, rollouts, settings(lr=0.01, optimizer_steps=3), adamw)
    assert len(several.losses) == 3
    assert several.metrics()["ratio_max"] > 1.05
    # Recomputed before the first update, they are those of the policy that sampled.
    assert several.metrics()["mismatch_max"] < 1e-4


def test_old_log_probs_as_sampled_let_the_clip_see_what_stale_rollouts_already_moved(
    policy: Policy, rollouts: list[Group]
) -> None:
    stepped(policy, rollouts, settings(lr=0.01), adamw)  # now the rollouts are one version old
    recomputed = stepped(replace(policy, model=copy.deepcopy(policy.model)), rollouts, settings()).metrics()
    sampled = stepped(policy, rollouts, settings(old_logprobs="sampled")).metrics()
    assert recomputed["ratio_max"] == 1.0
    assert sampled["ratio_max"] > 1.05
    assert sampled["mismatch"] == pytest.approx(recomputed["mismatch"])
    assert sampled["mismatch"] > 0.01


def test_trainer_and_engine_agree_on_fresh_rollouts(policy: Policy, rollouts: list[Group]) -> None:
    metrics = stepped(policy, rollouts, settings(token_budget=64)).metrics()
    assert metrics["mismatch_max"] < 1e-4
    assert 0.0 < metrics["packing_fill"] <= 1.0


def test_a_mismatch_is_reported_as_large_as_it_is(policy: Policy, rollouts: list[Group]) -> None:
    def shifted(sample: Rollout) -> Rollout:
        return replace(sample, logprobs=sample.logprobs - 0.25)

    groups = [replace(group, samples=[shifted(s) for s in group.samples]) for group in rollouts]
    metrics = stepped(policy, groups, settings()).metrics()
    assert metrics["mismatch"] == pytest.approx(0.25, abs=1e-3)
    assert metrics["mismatch_max"] == pytest.approx(0.25, abs=1e-3)


def test_kl_is_zero_at_the_base_model_and_pulls_back_to_it(model_dir: Path, rollouts: list[Group]) -> None:
    config = settings(loss={"kl_coef": 1.0, "entropy_coef": 0.0}, lr=1e-3)
    policy, reference = load(model_dir), load(model_dir)
    indifferent = [replace(group, advantages=[0.0] * 4) for group in rollouts]
    at_base = stepped(policy, indifferent, config, reference=reference).metrics()
    assert at_base["kl"] == pytest.approx(0.0, abs=1e-6)
    assert at_base["grad_norm"] == pytest.approx(0.0, abs=1e-4)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    values = [stepped(policy, indifferent, config, reference=reference).metrics()["kl"] for _ in range(4)]
    assert values[0] > 1e-3
    assert values == sorted(values, reverse=True)


def test_the_entropy_bonus_raises_entropy(policy: Policy, rollouts: list[Group]) -> None:
    config = settings(loss={"kl_coef": 0.0, "entropy_coef": 1.0}, lr=0.01)
    indifferent = [replace(group, advantages=[0.0] * 4) for group in rollouts]
    values = [stepped(policy, indifferent, config).metrics()["entropy"] for _ in range(4)]
    assert values == sorted(values)
    assert values[-1] > values[0]


def test_the_gradient_norm_is_reported_before_and_held_by_the_clip(policy: Policy, rollouts: list[Group]) -> None:
    before = weights_of(policy)
    config = settings(grad_clip=0.01)
    norm = stepped(policy, rollouts, config).metrics()["grad_norm"]
    assert norm > 0.02
    moved = sum(float((tensor - before[name]).square().sum()) for name, tensor in policy.weights().items()) ** 0.5
    assert moved == pytest.approx(0.01 * config.train.lr, rel=1e-3)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.25), (1, 0.5), (3, 1.0), (40, 1.0)])
def test_the_learning_rate_warms_up_by_updates_and_then_stays(
    policy: Policy, rollouts: list[Group], step: int, expected: float
) -> None:
    optimizer = sgd(list(policy.model.parameters()))
    config = settings(warmup_steps=4)
    train_step(alone(policy, None, optimizer), rollouts, config, step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected * config.train.lr)


def test_fewer_groups_than_optimizer_steps_are_enough(policy: Policy, rollouts: list[Group]) -> None:
    assert len(stepped(policy, rollouts[:1], settings(optimizer_steps=4)).losses) == 1


def test_the_learning_rate_rises_stays_and_falls() -> None:
    schedule = {"lr": 1.0, "warmup_steps": 4, "cooldown_steps": 5, "optimizer_steps": 2}
    config = make_config("tiny", steps=10, train=schedule)
    assert [learning_rate(config, update) for update in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]
    assert [learning_rate(config, update) for update in (15, 16, 17, 20)] == [1.0, 1.0, 0.8, 0.2]
    steady = make_config("tiny", steps=10, train=schedule | {"warmup_steps": 0, "cooldown_steps": 0})
    assert {learning_rate(steady, update) for update in range(1, 30)} == {1.0}
