"""Alternatives: what a cheat would most likely compute with instead, so that gaps can be compared with it.

Weights in 8 bits (integers or floats) as everyone's library rounds them, row by row, and the version before. Other
temperatures need no weights of their own (`recompute.WARMER`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from shoal.models.load import Policy

Weights = Mapping[str, Tensor]
OLDER = "older version"
COOLER, WARMER = "temperature x0.9", "temperature x1.1"
MAX_FP8 = 448.0


def int_rounded(levels: int, weights_RC: Tensor) -> Tensor:
    """A matrix rounded to whole steps, each row by its own scale; anything else as it is."""
    if weights_RC.ndim != 2:
        return weights_RC
    step_R1 = weights_RC.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / levels
    return (weights_RC / step_R1).round() * step_R1


def fp8_rounded(weights_RC: Tensor) -> Tensor:
    """A matrix in e4m3, each row by its own scale; anything else as it is."""
    if weights_RC.ndim != 2:
        return weights_RC
    scale_R1 = weights_RC.abs().amax(dim=1, keepdim=True).clamp_min(1e-12).float() / MAX_FP8
    return ((weights_RC.float() / scale_R1).to(torch.float8_e4m3fn).float() * scale_R1).to(weights_RC.dtype)


# Those that follow from the version's own weights, by name.
ROUNDED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "int8 weights": lambda weights: int_rounded(127, weights),
    "fp8 weights": fp8_rounded,
}
SHIFTS = (*ROUNDED, OLDER, COOLER, WARMER)


@contextmanager
def with_weights(policy: Policy, change: Callable[[str, Tensor], Tensor], what: str) -> Iterator[None]:
    """The policy with other weights, for a while."""
    own = {name: tensor.clone() for name, tensor in policy.weights().items()}
    policy.set_weights({name: change(name, tensor) for name, tensor in own.items()}, what)
    try:
        yield
    finally:
        policy.set_weights(own, what)
