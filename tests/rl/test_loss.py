import math
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.rl.loss import LossInputs, LossOutputs, compute_loss
from shoal.rl.loss_config import Family, LossConfig

FAMILIES: tuple[Family, ...] = get_args(Family)


def f64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def policy_only(family: Family, **settings: float) -> LossConfig:
    return LossConfig.model_validate({"family": family, "kl_coef": 0.0, "entropy_coef": 0.0, **settings})


def token_loss(
    config: LossConfig,
    *,
    p: Sequence[float],
    old_p: Sequence[float],
    advantage: Sequence[float],
    sample: Sequence[int] | None = None,
) -> tuple[LossOutputs, list[float]]:
    """The loss summed over tokens of the given probabilities, and its gradient for each log-probability."""
    logp_T = f64(p).log().requires_grad_()
    inputs = LossInputs(
        logp_T=logp_T,
        old_logp_T=f64(old_p).log(),
        advantage_T=f64(advantage),
        sample_T=torch.tensor(sample if sample is not None else list(range(len(p)))),
        entropy_T=torch.zeros_like(logp_T),
        ref_logp_T=None,
    )
    outputs = compute_loss(inputs, config, total_tokens=len(p))
    (gradient_T,) = torch.autograd.grad(outputs.loss * len(p), logp_T)
    return outputs, gradient_T.tolist()


def regularised(config: LossConfig, *, p: float, ref_p: float, entropy: float) -> tuple[LossOutputs, float, float]:
    """The loss of one token with advantage 0, and its gradients for the log-probability and the entropy."""
    logp_T, entropy_T = f64([p]).log().requires_grad_(), f64([entropy]).requires_grad_()
    inputs = LossInputs(
        logp_T=logp_T,
        old_logp_T=logp_T.detach(),
        advantage_T=f64([0.0]),
        sample_T=torch.tensor([0]),
        entropy_T=entropy_T,
        ref_logp_T=f64([ref_p]).log(),
    )
    outputs = compute_loss(inputs, config, total_tokens=1)
    logp_gradient, entropy_gradient = torch.autograd.grad(outputs.loss, [logp_T, entropy_T])
    return outputs, logp_gradient.item(), entropy_gradient.item()


# Two-sided clip: min(min(ratio, 4) A, clip(ratio, 0.8, 1.2) A). The gradient of -ratio A for log p is -ratio A.


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 2.0, -2.2, -2.2),
        (0.5, 1.0, -0.5, -0.5),  # min(0.5, 0.8): a good token that became rarer is not held
        (1.5, 1.0, -1.2, 0.0),  # min(1.5, 1.2)
        (0.5, -1.0, 0.8, 0.0),  # min(-0.5, -0.8)
        (2.0, -1.0, 2.0, 2.0),  # min(-2, -1.2): between 1 + eps and delta a bad token is pushed down
        (5.0, -1.0, 4.0, 0.0),  # min(-4, -1.2)
    ],
)
def test_the_two_sided_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    outputs, gradients = token_loss(policy_only("two_sided"), p=[0.1 * ratio], old_p=[0.1], advantage=[advantage])
    assert outputs.loss.item() == pytest.approx(loss)
    assert gradients == pytest.approx([gradient])


def test_a_bad_token_whose_ratio_is_100_costs_delta_and_not_100() -> None:
    # A = -2: min(min(100, 4) x -2, clip(100, 0.8, 1.2) x -2) = min(-8, -2.4) = -8.
    outputs, gradients = token_loss(policy_only("two_sided"), p=[0.5], old_p=[0.005], advantage=[-2.0])
    assert outputs.loss.item() == pytest.approx(8.0)
    assert gradients == [0.0]
    assert outputs.ratio_max.item() == pytest.approx(100.0)


def test_the_two_sided_clip_counts_a_token_on_the_side_it_was_cut() -> None:
    # Ratios 1.5 and 5 are cut as too high (A = 1, A = -1); 0.5 as too low (A = -1); 0.5 and 2 are not cut.
    p, advantage = [0.15, 0.5, 0.05, 0.05, 0.2], [1.0, -1.0, -1.0, 1.0, -1.0]
    outputs, gradients = token_loss(policy_only("two_sided"), p=p, old_p=[0.1] * 5, advantage=advantage)
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (2, 1)
    assert [gradient == 0.0 for gradient in gradients] == [True, True, True, False, False]


# CISPO: min(ratio, 5) A log p, with the gradient of log p alone.


def test_cispo_weighs_the_gradient_by_the_capped_ratio_and_drops_no_token() -> None:
    # Ratios 2, 10 and 0.1: weights 2, 5 and 0.1. Loss -(2 ln 0.2 + 5 ln 0.5 - 0.1 ln 0.01), advantages 1, 1, -1.
    outputs, gradients = token_loss(
        policy_only("cispo"), p=[0.2, 0.5, 0.01], old_p=[0.1, 0.05, 0.1], advantage=[1.0, 1.0, -1.0]
    )
    loss = -(2 * math.log(0.2) + 5 * math.log(0.5) - 0.1 * math.log(0.01)) / 3
    assert outputs.loss.item() == pytest.approx(loss)
    assert gradients == pytest.approx([-2.0, -5.0, 0.1])
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (1, 0)


# GSPO: the clip on the geometric mean of a sample's ratios.


def test_gspo_clips_a_sample_by_its_mean_and_not_its_tokens() -> None:
    # Sample 0: ratios 4 and 1, mean sqrt(4) = 2 > 1.2, A = 1: -1.2 each, no gradient, though the second did not move.
    # Sample 1: ratios 1.21 and 1, mean sqrt(1.21) = 1.1 within 0.9 .. 1.2, A = 2: -2.2 each, gradient -2.2 each.
    # Sample 2: ratio 0.5 < 0.9, A = -1: 0.9, no gradient.
    outputs, gradients = token_loss(
        policy_only("gspo", gspo_eps_low=0.1, gspo_eps_high=0.2),
        p=[0.4, 0.1, 0.121, 0.1, 0.05],
        old_p=[0.1] * 5,
        advantage=[1.0, 1.0, 2.0, 2.0, -1.0],
        sample=[0, 0, 1, 1, 2],
    )
    assert outputs.sums["policy_loss"].item() == pytest.approx(-1.2 - 1.2 - 2.2 - 2.2 + 0.9)
    assert gradients == pytest.approx([0.0, 0.0, -2.2, -2.2, 0.0])
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (2, 1)


def test_gspo_finds_the_tokens_of_a_sample_wherever_they_lie() -> None:
    # Samples 0 and 1 interleaved: means sqrt(4 x 1) = 2 and sqrt(9 x 1) = 3, bounds far away.
    _, gradients = token_loss(
        policy_only("gspo", gspo_eps_high=100.0),
        p=[0.4, 0.9, 0.1, 0.1],
        old_p=[0.1] * 4,
        advantage=[1.0] * 4,
        sample=[0, 1, 0, 1],
    )
    assert gradients == pytest.approx([-2.0, -3.0, -2.0, -3.0])


def test_gspo_in_float32_resolves_its_own_bounds() -> None:
    # 1 + 4e-4 is 3,000 float32 steps above 1. Log-ratios 3e-4 and 5e-4 are on either side.
    logp_T = torch.tensor([-1.0, -1.0]).requires_grad_()
    inputs = LossInputs(
        logp_T=logp_T,
        old_logp_T=torch.tensor([-1.0003, -1.0005]),
        advantage_T=torch.ones(2),
        sample_T=torch.tensor([0, 1]),
        entropy_T=torch.zeros(2),
        ref_logp_T=None,
    )
    (gradient_T,) = torch.autograd.grad(compute_loss(inputs, policy_only("gspo"), total_tokens=2).loss, logp_T)
    assert [gradient == 0.0 for gradient in gradient_T.tolist()] == [False, True]


def test_gspo_holds_a_bad_sample_whose_ratio_grew() -> None:
    # Ratios 9 and 4, mean 6 > delta = 4, A = -1: 4 each and no gradient. Ratio 2 < delta, A = -1: gradient 2.
    outputs, gradients = token_loss(
        policy_only("gspo"), p=[0.9, 0.4, 0.2], old_p=[0.1] * 3, advantage=[-1.0] * 3, sample=[0, 0, 1]
    )
    assert outputs.sums["policy_loss"].item() == pytest.approx(4.0 + 4.0 + 2.0)
    assert gradients == pytest.approx([0.0, 0.0, 2.0])
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (2, 0)


# DPPO: ratio x A unless the probability moved more than 0.2 the way A asks for.


@pytest.mark.parametrize(
    ("p", "old_p", "advantage", "loss", "gradient"),
    [
        (0.9, 0.5, 1.0, 0.0, 0.0),  # gained 0.4
        (0.5, 0.9, -1.0, 0.0, 0.0),  # lost 0.4
        (0.9, 0.5, -1.0, 1.8, 1.8),  # gained 0.4, but is asked to fall: 0.9 / 0.5 = 1.8
        (0.45, 0.9, 1.0, -0.5, -0.5),  # lost 0.45, but is asked to rise: 0.45 / 0.9 = 0.5
        (0.04, 0.01, 1.0, -4.0, -4.0),  # a rare token may grow fourfold: it gained 0.03
        (0.1, 0.01, 1.0, -5.0, -5.0),  # and tenfold: it gained 0.09; its weight is capped
        (0.001, 0.1, -1.0, 0.01, 0.01),  # and shrink a hundredfold: it lost 0.099
    ],
)
def test_dppo_by_hand(p: float, old_p: float, advantage: float, loss: float, gradient: float) -> None:
    outputs, gradients = token_loss(policy_only("dppo"), p=[p], old_p=[old_p], advantage=[advantage])
    assert outputs.loss.item() == pytest.approx(loss)
    assert gradients == pytest.approx([gradient])


def test_dppo_counts_a_token_on_the_side_it_was_dropped() -> None:
    p, old_p, advantage = [0.9, 0.9, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], [1.0, -1.0, -1.0, 1.0]
    outputs, _ = token_loss(policy_only("dppo", dppo_high=0.3, dppo_low=0.3), p=p, old_p=old_p, advantage=advantage)
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (1, 1)


# KL and entropy.


def test_the_kl_term_pulls_the_policy_towards_the_base_model() -> None:
    # k3 = r - ln r - 1 with r = ref / p, and its gradient for log p is 1 - r.
    # p = 0.5, ref = 0.25: r = 1/2, k3 = 1/2 + ln 2 - 1, gradient 1/2: descent makes the token rarer.
    # p = 0.25, ref = 0.5: r = 2, k3 = 2 - ln 2 - 1, gradient -1: descent makes it likelier.
    config = LossConfig(kl_coef=0.1, entropy_coef=0.0)
    likelier, likelier_gradient, _ = regularised(config, p=0.5, ref_p=0.25, entropy=0.0)
    rarer, rarer_gradient, _ = regularised(config, p=0.25, ref_p=0.5, entropy=0.0)
    assert likelier.loss.item() == pytest.approx(0.1 * (0.5 + math.log(2) - 1))
    assert likelier_gradient == pytest.approx(0.1 * 0.5)
    assert rarer.loss.item() == pytest.approx(0.1 * (2 - math.log(2) - 1))
    assert rarer_gradient == pytest.approx(0.1 * -1)


def test_a_policy_equal_to_the_base_model_pays_no_kl() -> None:
    outputs, gradient, _ = regularised(LossConfig(kl_coef=1.0, entropy_coef=0.0), p=0.3, ref_p=0.3, entropy=0.0)
    assert (outputs.loss.item(), gradient) == (0.0, 0.0)


def test_entropy_is_a_bonus_with_gradient() -> None:
    # Loss -0.01 x 1.5, gradient -0.01: descent raises the entropy.
    outputs, _, gradient = regularised(LossConfig(kl_coef=0.0, entropy_coef=0.01), p=0.3, ref_p=0.3, entropy=1.5)
    assert outputs.loss.item() == pytest.approx(-0.015)
    assert gradient == pytest.approx(-0.01)


def test_kl_without_a_base_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kl_coef 0\.001 needs ref_logp_T"):
        token_loss(LossConfig(), p=[0.5], old_p=[0.5], advantage=[1.0])


# What holds for every family.


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unmoved_policy_gets_the_plain_policy_gradient(family: Family) -> None:
    p, advantage = [0.2, 0.9, 0.01], [1.0, -2.0, 0.5]
    outputs, gradients = token_loss(policy_only(family), p=p, old_p=p, advantage=advantage, sample=[0, 1, 1])
    assert gradients == pytest.approx([-1.0, 2.0, -0.5])
    assert (outputs.sums["clipped_high"].item(), outputs.sums["clipped_low"].item()) == (0, 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("logp", [0.0, -1e9])
@pytest.mark.parametrize("old_logp", [0.0, -1e9, -math.inf])
@pytest.mark.parametrize("ref_logp", [0.0, -1e9, -math.inf])
def test_an_infinite_ratio_never_makes_a_nan(
    family: Family, advantage: float, logp: float, old_logp: float, ref_logp: float
) -> None:
    logp_T = torch.tensor([logp, -1.0, -2.0]).requires_grad_()
    inputs = LossInputs(
        logp_T=logp_T,
        old_logp_T=torch.tensor([old_logp, -1.0, -math.inf]),
        advantage_T=torch.tensor([advantage, 1.0, -1.0]),
        sample_T=torch.tensor([0, 0, 1]),
        entropy_T=torch.zeros(3),
        ref_logp_T=torch.tensor([ref_logp, -1.0, 0.0]),
    )
    outputs = compute_loss(inputs, LossConfig(family=family), total_tokens=3)
    (gradient_T,) = torch.autograd.grad(outputs.loss, logp_T)
    assert torch.isfinite(gradient_T).all()
    assert math.isfinite(outputs.loss.item())
    assert all(math.isfinite(value.item()) for value in [*outputs.sums.values(), outputs.ratio_max])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_divided_by_the_tokens_of_the_whole_batch(family: Family) -> None:
    p, old_p, advantage = f64([0.3, 0.4]).log(), f64([0.3, 0.5]).log(), f64([1.0, -1.0])
    inputs = LossInputs(p, old_p, advantage, torch.tensor([0, 1]), torch.zeros(2), None)
    alone = compute_loss(inputs, policy_only(family), total_tokens=2)
    of_ten = compute_loss(inputs, policy_only(family), total_tokens=10)
    assert of_ten.loss.item() == pytest.approx(alone.loss.item() * 2 / 10)
    assert alone.sums["policy_loss"].item() == of_ten.sums["policy_loss"].item() == pytest.approx(2 * alone.loss.item())


@pytest.mark.parametrize("tokens", [0, 3])
def test_a_micro_batch_that_cannot_be_part_of_its_batch_is_refused(tokens: int) -> None:
    column_T = torch.zeros(tokens)
    inputs = LossInputs(column_T, column_T, column_T, torch.arange(tokens), column_T, None)
    with pytest.raises(ValueError, match=rf"micro-batch of {tokens} loss tokens, allowed 1\.\.2"):
        compute_loss(inputs, policy_only("two_sided"), total_tokens=2)


@st.composite
def batches(draw: st.DrawFn) -> tuple[LossInputs, list[list[int]]]:
    """A batch of samples, and a way to deal them out to micro-batches in any order."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    dealt = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    order = draw(st.permutations(range(len(lengths))))
    tokens = sum(lengths)
    log_probability = st.floats(-8, 0)

    def column(strategy: st.SearchStrategy[float], size: int) -> Tensor:
        return f64(draw(st.lists(strategy, min_size=size, max_size=size)))

    sample_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    inputs = LossInputs(
        logp_T=column(log_probability, tokens).requires_grad_(),
        old_logp_T=column(log_probability, tokens),
        advantage_T=column(st.floats(-3, 3), len(lengths))[sample_T],
        sample_T=sample_T,
        entropy_T=column(st.floats(0, 5), tokens).requires_grad_(),
        ref_logp_T=column(log_probability, tokens),
    )
    return inputs, [[sample for sample in order if dealt[sample] == micro] for micro in set(dealt)]


def micro_batch(batch: LossInputs, samples: list[int]) -> LossInputs:
    token_T = torch.cat([torch.nonzero(batch.sample_T == sample).squeeze(1) for sample in samples])
    lengths = torch.tensor([int((batch.sample_T == sample).sum()) for sample in samples])
    assert batch.ref_logp_T is not None
    return LossInputs(
        logp_T=batch.logp_T[token_T],
        old_logp_T=batch.old_logp_T[token_T],
        advantage_T=batch.advantage_T[token_T],
        sample_T=torch.repeat_interleave(torch.arange(len(samples)), lengths),
        entropy_T=batch.entropy_T[token_T],
        ref_logp_T=batch.ref_logp_T[token_T],
    )


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(case=batches())
def test_packing_and_splitting_change_neither_loss_nor_gradient(
    family: Family, case: tuple[LossInputs, list[list[int]]]
) -> None:
    batch, packing = case
    config = LossConfig.model_validate(
        {"family": family, "kl_coef": 0.1, "entropy_coef": 0.1, "gspo_eps_low": 0.2, "gspo_eps_high": 0.2}
    )
    total = batch.logp_T.numel()
    leaves = [batch.logp_T, batch.entropy_T]

    whole = compute_loss(batch, config, total_tokens=total)
    parts = [compute_loss(micro_batch(batch, samples), config, total_tokens=total) for samples in packing]
    loss = torch.stack([part.loss for part in parts]).sum()

    torch.testing.assert_close(loss, whole.loss)
    for split, together in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(whole.loss, leaves), strict=True):
        torch.testing.assert_close(split, together)
    for name, total_sum in whole.sums.items():
        torch.testing.assert_close(torch.stack([part.sums[name] for part in parts]).sum(), total_sum)
    assert max(part.ratio_max.item() for part in parts) == whole.ratio_max.item()
