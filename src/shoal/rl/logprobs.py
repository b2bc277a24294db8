"""Log-probabilities of the chosen tokens, computed in chunks so that the full logits never exist at once."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def chosen_logprobs(
    hidden_TD: Tensor,
    head: Callable[[Tensor], Tensor],
    targets_T: Tensor,
    *,
    temperature: float,
    vocab: int,
    max_logits: int = 2**24,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target and the entropy of each position, both float32 and with gradient.

    No more than `max_logits` logits (or one row) exist at a time, in the forward or in the backward pass: `head` is
    applied to a few rows at once, and again to each when its gradient is due. The softmax and its gradient need a
    handful of tensors of that size.

    The logits are divided by the sampling temperature: these are probabilities of the distribution that was sampled.

    `vocab` is the width of what `head` returns, which a model's config may understate when the head is padded.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: must be above 0, the one the tokens were sampled with")
    score = partial(_score, head, temperature, vocab)
    rows = max(1, max_logits // vocab)
    if hidden_TD.shape[0] <= rows:
        return score(hidden_TD, targets_T)

    if torch.is_grad_enabled():
        # A head draws no random numbers, so there is no generator state worth saving for its second run.
        score = partial(checkpoint, score, use_reentrant=False, preserve_rng_state=False)
    chunks = zip(torch.split(hidden_TD, rows), torch.split(targets_T, rows), strict=True)
    logps, entropies = zip(*(score(hidden_RD, targets_R) for hidden_RD, targets_R in chunks), strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _score(
    head: Callable[[Tensor], Tensor], temperature: float, vocab: int, hidden_RD: Tensor, targets_R: Tensor
) -> tuple[Tensor, Tensor]:
    logits_RV = head(hidden_RD).float() / temperature
    if logits_RV.shape[-1] != vocab:
        raise ValueError(
            f"head returned {logits_RV.shape[-1]} logits per token, vocab is {vocab}: pass the head's width"
        )
    logp_RV = logits_RV.log_softmax(dim=-1)
    entropy_R = -(logp_RV.exp() * logp_RV).sum(dim=-1)
    return logp_RV.gather(1, targets_R[:, None]).squeeze(1), entropy_R
