"""Alternatives: what a cheat would most likely compute with instead, so that gaps can be compared with it.

Weights in 8 bits (integers or floats) as everyone's library rounds them, row by row, and the version before. Other
temperatures need no weights of their own (`recompute.WARMER`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from shoal.errors import ModelError
from shoal.models.load import Policy
from shoal.validate.numerics import alternative_names

Weights = Mapping[str, Tensor]
OLDER = alternative_names.OLDER
COOLER, WARMER = "temperature x0.9", "temperature x1.1"
MAX_FP8 = 448.0
# Weights that are rounded at a time: they stay in the cache from one operation to the next.
IN_CACHE = 1 << 17


def int_rounded(levels: int, weights_RC: Tensor) -> Tensor:
    """A matrix rounded to whole steps, each row by its own scale; anything else as it is."""
    if weights_RC.ndim != 2:
        return weights_RC
    found_RC, rows = torch.empty_like(weights_RC), max(1, IN_CACHE // weights_RC.shape[1])
    for some_rC, out_rC in zip(weights_RC.split(rows), found_RC.split(rows), strict=True):
        step_r1 = some_rC.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / levels
        torch.div(some_rC, step_r1, out=out_rC).round_().mul_(step_r1)
    return found_RC


def fp8_rounded(weights_RC: Tensor) -> Tensor:
    """A matrix in e4m3, each row by its own scale; anything else as it is."""
    if weights_RC.ndim != 2:
        return weights_RC
    scale_R1 = weights_RC.abs().amax(dim=1, keepdim=True).clamp_min(1e-12).float() / MAX_FP8
    return (weights_RC.float() / scale_R1).to(torch.float8_e4m3fn).float().mul_(scale_R1).to(weights_RC.dtype)


# Those that follow from the version's own weights, by name.
ROUNDED: Mapping[str, Callable[[Tensor], Tensor]] = {
    alternative_names.INT8: lambda weights: int_rounded(127, weights),
    alternative_names.FP8: fp8_rounded,
}
SHIFTS = (*ROUNDED, OLDER, COOLER, WARMER)


@contextmanager
def with_weights(
    policy: Policy, change: Callable[[str, Tensor], Tensor], what: str, own: Weights | None = None
) -> Iterator[None]:
    """The policy with other weights, for a while; they are changed in place, tensor by tensor.

    `own` are the weights that it has, from where they come back: mapped from their files, they take no memory. Without
    them, a copy is set aside.
    """
    mine = policy.weights()
    back = {name: tensor.clone() for name, tensor in mine.items()} if own is None else own
    try:
        with torch.no_grad():
            for name, tensor in mine.items():
                other = change(name, tensor)
                if other.shape != tensor.shape:
                    raise ModelError(f"{what}: {name} has shape {tuple(other.shape)}, expected {tuple(tensor.shape)}")
                tensor.copy_(other)
        yield
    finally:
        policy.set_weights(back, what)
