"""Policy loss of one micro-batch: GRPO with two-sided clipping, CISPO, GSPO and DPPO, with KL and entropy terms.

In every family the largest weight of a token is a constant of the config (`max_weight`): one answer whose claimed
log-probs are made up weighs at most that many times what it would weigh with the true ones.

Every token of the optimizer batch weighs the same, whatever micro-batch it was packed into: each micro-batch's loss is
a sum over its tokens divided by the token count of the *whole* batch, so the losses and gradients of the micro-batches
add up to those of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.rl.loss_config import Family, LossConfig

# exp(20) = 4.9e8: far beyond every clip, and still finite when multiplied. Unclamped, one token with ratio inf times
# one zero makes the whole batch NaN. Outside the limit a token has no gradient.
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The loss tokens of a micro-batch: completions only, of whole samples only."""

    logp_T: Tensor  # with gradient, finite
    old_logp_T: Tensor  # what the ratio is measured from, without gradient
    advantage_T: Tensor
    sample_T: Tensor  # int64, which sample each token belongs to, 0..n-1
    entropy_T: Tensor  # with gradient
    ref_logp_T: Tensor | None  # base model; None when kl_coef == 0


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """A loss to call `backward` on, and what to report about it.

    `sums` holds detached sums over tokens: `policy_loss`, `kl`, `entropy`, `clipped_high`, `clipped_low`. Added over
    the micro-batches and divided by the batch's token count they are means. `ratio_max` is the largest ratio of a
    single token, whichever the family.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    ratio_max: Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a family wants to be large, and the tokens it held back because their ratio was too high or too low."""

    objective_T: Tensor
    clipped_high_T: Tensor
    clipped_low_T: Tensor


def compute_loss(inputs: LossInputs, config: LossConfig, *, total_tokens: int) -> LossOutputs:
    """Policy loss + kl_coef x KL to the base model - entropy_coef x entropy, summed over tokens / `total_tokens`.

    `total_tokens` counts the loss tokens of the whole optimizer batch, not of this micro-batch.
    """
    tokens = inputs.logp_T.numel()
    if not 1 <= tokens <= total_tokens:
        raise ValueError(
            f"micro-batch of {tokens} loss tokens, allowed 1..{total_tokens} (total_tokens): "
            "pass the token count of the whole optimizer batch"
        )
    log_ratio_T = _clamped(inputs.logp_T - inputs.old_logp_T)
    surrogate = FAMILIES[config.family](inputs, log_ratio_T, config)
    kl_T = _kl(inputs, config)
    loss_T = config.kl_coef * kl_T - config.entropy_coef * inputs.entropy_T - surrogate.objective_T
    return LossOutputs(
        loss=loss_T.sum() / total_tokens,
        sums={
            "policy_loss": -surrogate.objective_T.detach().sum(),
            "kl": kl_T.detach().sum(),
            "entropy": inputs.entropy_T.detach().sum(),
            "clipped_high": surrogate.clipped_high_T.sum(),
            "clipped_low": surrogate.clipped_low_T.sum(),
        },
        ratio_max=log_ratio_T.detach().max().exp(),
    )


def _clamped(log_ratio_T: Tensor) -> Tensor:
    return log_ratio_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _kl(inputs: LossInputs, config: LossConfig) -> Tensor:
    """The k3 estimate of KL(policy || base), never negative (Schulman, joschu.net/blog/kl-approx.html).

    Its gradient, 1 - ref / policy, reaches `logp_T`: gradient descent moves the policy towards the base model.
    """
    if inputs.ref_logp_T is None:
        if config.kl_coef > 0:
            raise ValueError(f"kl_coef {config.kl_coef} needs ref_logp_T: pass the base model's, or set kl_coef to 0")
        return torch.zeros_like(inputs.logp_T)
    log_ratio_T = _clamped(inputs.ref_logp_T - inputs.logp_T)
    return log_ratio_T.exp() - log_ratio_T - 1


def _two_sided(inputs: LossInputs, log_ratio_T: Tensor, config: LossConfig) -> Surrogate:
    """GRPO's clip with a second bound: min(min(ratio, delta) A, clip(ratio, 1 - eps, 1 + eps) A).

    The first clip does not hold a bad token whose ratio grew, where the loss would be as large as the ratio; `delta`
    does (INTELLECT-2, arXiv:2505.07291).
    """
    advantage_T = inputs.advantage_T
    ratio_T = log_ratio_T.exp()
    bounded_T = ratio_T.clamp(max=config.delta) * advantage_T
    clipped_T = ratio_T.clamp(1 - config.eps, 1 + config.eps) * advantage_T
    return Surrogate(
        objective_T=torch.minimum(bounded_T, clipped_T),
        clipped_high_T=((advantage_T > 0) & (ratio_T > 1 + config.eps))
        | ((advantage_T < 0) & (ratio_T > config.delta)),
        clipped_low_T=(advantage_T < 0) & (ratio_T < 1 - config.eps),
    )


def _cispo(inputs: LossInputs, log_ratio_T: Tensor, config: LossConfig) -> Surrogate:
    """REINFORCE weighted by a capped ratio without gradient: every token keeps teaching.

    MiniMax-M1, arXiv:2506.13585, equations 4 and 5; with the cap on the ratio itself and no lower bound as in ScaleRL,
    arXiv:2510.13786, equation 4. A token counted as clipped has its weight capped, not its gradient cut.
    """
    ratio_T = log_ratio_T.detach().exp()
    return Surrogate(
        objective_T=ratio_T.clamp(max=config.cispo_cap) * inputs.advantage_T * inputs.logp_T,
        clipped_high_T=ratio_T > config.cispo_cap,
        clipped_low_T=torch.zeros_like(ratio_T, dtype=torch.bool),
    )


def _gspo(inputs: LossInputs, log_ratio_T: Tensor, config: LossConfig) -> Surrogate:
    """Clips whole samples, by the geometric mean of their tokens' ratios.

    GSPO-token (arXiv:2507.18071, equations 13 and 14): each token has its sample's ratio as value and its own
    log-probability's gradient. Averaged over tokens as all our families, where the paper averages over samples: a
    long sample weighs more than a short one, in exchange for a loss that packing cannot change.

    The paper's clip does not hold a bad sample whose ratio grew; `delta` does, as in `_two_sided`.
    """
    advantage_T = inputs.advantage_T
    ratio_T = (_sample_mean(log_ratio_T.detach(), inputs.sample_T) + log_ratio_T - log_ratio_T.detach()).exp()
    low, high = 1 - config.gspo_eps_low, 1 + config.gspo_eps_high
    return Surrogate(
        objective_T=torch.minimum(
            ratio_T.clamp(max=config.delta) * advantage_T, ratio_T.clamp(low, high) * advantage_T
        ),
        clipped_high_T=((advantage_T > 0) & (ratio_T > high)) | ((advantage_T < 0) & (ratio_T > config.delta)),
        clipped_low_T=(advantage_T < 0) & (ratio_T < low),
    )


def _sample_mean(values_T: Tensor, sample_T: Tensor) -> Tensor:
    # As long as the tokens, since a micro-batch has no more samples than tokens: asking for n would stall a GPU.
    sums_T = torch.zeros_like(values_T).index_add(0, sample_T, values_T)
    counts_T = torch.zeros_like(values_T).index_add(0, sample_T, torch.ones_like(values_T))
    return sums_T[sample_T] / counts_T[sample_T]


def _dppo(inputs: LossInputs, log_ratio_T: Tensor, config: LossConfig) -> Surrogate:
    """Drops tokens whose probability, not ratio, already moved too far in the direction their advantage asks for.

    DPPO with binary total variation (arXiv:2602.04879, equations 12 and 13). A rare token may double; a likely one may
    not lose half its mass. The paper anchors the trust region at the probabilities of the sampler and saw training
    collapse when it was anchored at recomputed ones, which is what `old_logp_T` usually holds.

    A token whose claimed probability was next to nothing has hardly moved by that measure and a ratio without bound,
    so the ratio is a weight without gradient that `dppo_cap` bounds, whatever the sign of the advantage.
    """
    advantage_T = inputs.advantage_T
    ratio_T = log_ratio_T.detach().exp()
    moved_T = inputs.logp_T.detach().exp() - inputs.old_logp_T.exp()
    too_high_T = (advantage_T > 0) & (moved_T > config.dppo_high)
    too_low_T = (advantage_T < 0) & (moved_T < -config.dppo_low)
    # Worth ratio x A, with the gradient of A x log p times that weight: also where the log-ratio was clamped.
    value_T = ratio_T.clamp(max=config.dppo_cap) * (1 + inputs.logp_T - inputs.logp_T.detach())
    return Surrogate(
        objective_T=torch.where(too_high_T | too_low_T, 0.0, value_T * advantage_T),
        clipped_high_T=too_high_T | (ratio_T > config.dppo_cap),
        clipped_low_T=too_low_T,
    )


def max_weight(config: LossConfig) -> float:
    """The most that a token's gradient can be, in units of its advantage x the gradient of its log-prob."""
    caps: dict[Family, float] = {
        "two_sided": config.delta,
        "cispo": config.cispo_cap,
        "gspo": max(config.delta, 1 + config.gspo_eps_high),
        "dppo": config.dppo_cap,
    }
    return caps[config.family]


FAMILIES: dict[Family, Callable[[LossInputs, Tensor, LossConfig], Surrogate]] = {
    "two_sided": _two_sided,
    "cispo": _cispo,
    "gspo": _gspo,
    "dppo": _dppo,
}
