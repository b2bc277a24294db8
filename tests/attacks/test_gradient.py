"""Log-probs are a worker's claim, and one answer's claim cannot steer a step, whichever loss is used."""

from typing import get_args

import pytest
import torch

from shoal.rl.loss import LossInputs, compute_loss, max_weight
from shoal.rl.loss_config import Family, LossConfig

ANSWERS, TOKENS = 1024, 8
FAMILIES: tuple[Family, ...] = get_args(Family)
# The format takes -10000 .. 0; in between a forger may aim at whatever the clamp and the clips leave.
CLAIMS = (-10_000.0, -30.0, -21.5, -15.0, -8.0, -5.0, -3.5, -2.5, -0.1, 0.0)


def gradients(family: Family, claims: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """How hard the loss pulls at the log-prob of each token of 1,024 answers, the first of which is forged."""
    generator = torch.Generator().manual_seed(0)
    logp = (-1.5 + torch.randn(ANSWERS, TOKENS, generator=generator) / 4).clamp(max=-0.01)
    old = logp + torch.randn(ANSWERS, TOKENS, generator=generator) * 1e-5
    old[0] = claims
    logp_T = logp.flatten().requires_grad_()
    inputs = LossInputs(
        logp_T,
        old.flatten(),
        advantages.repeat_interleave(TOKENS),
        torch.arange(ANSWERS).repeat_interleave(TOKENS),
        torch.zeros(ANSWERS * TOKENS),
        None,
    )
    config = LossConfig(family=family, kl_coef=0.0, entropy_coef=0.0)
    loss = compute_loss(inputs, config, total_tokens=ANSWERS * TOKENS).loss
    (gradient_T,) = torch.autograd.grad(loss, logp_T)
    return gradient_T.view(ANSWERS, TOKENS).abs()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_one_forged_answer_never_owns_the_gradient(family: Family, advantage: float) -> None:
    """Bound: cap / (cap + 1023) where all advantages are as large; 0.5 % with the default caps of 4 and 5."""
    advantages = torch.ones(ANSWERS)
    advantages[1::2] = -1.0
    advantages[0] = advantage
    cap = max_weight(LossConfig(family=family))
    most = cap / (cap + ANSWERS - 1)
    assert most < 0.006
    # Also claims that differ by token: gspo takes their mean, and a few carry the ratio of all.
    mixed = [torch.tensor([claim] * few + [-1.5] * (TOKENS - few)) for claim in CLAIMS for few in (1, 4, TOKENS - 1)]
    for claims in [*(torch.full((TOKENS,), claim) for claim in CLAIMS), *mixed]:
        pulls = gradients(family, claims, advantages)
        share = float(pulls[0].sum() / pulls.sum())
        assert share <= most * 1.01, f"{family}: claims {claims.tolist()} own {share:.4f} of the gradient"
