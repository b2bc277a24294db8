"""A policy sharded over ranks (FSDP2): each holds its share of every tensor, and gathers a block when it computes it.

Sharded parameters are float32. In a bfloat16 run they are gathered, and computed with, in bfloat16, and gradients are
summed in float32; a float32 run is exact float32. Gradients of the ranks are added, never averaged: the loss is already
divided by the number of tokens of the whole batch.

They are added after every turn, so that a rank holds its share of the gradients alone. To add them once per optimizer
step would save traffic, and take 4 bytes of every rank per parameter of the whole model: 128 GB at 32B.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from shoal.devices import can_pin
from shoal.errors import ModelError
from shoal.models.load import Policy
from shoal.train.distributed import World
from shoal.train.scorer import Scorer


def sharded(policy: Policy, world: World, *, compute: torch.dtype) -> Scorer:
    """Splits a policy, which may be on the meta device, among the ranks: every block, and the rest as the root.

    `compute` is the format that is gathered and computed with.
    """
    mesh = world.mesh()
    scorer = Scorer(policy)
    mixed = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # The root, too, gives back what it gathered: between passes, parameters are always the shares.
    for module in (*blocks(policy.model), scorer):
        fully_shard(module, mesh=mesh, mp_policy=mixed, reshard_after_forward=True)
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return scorer


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks: the members of the model's longest list of modules."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ModelError(f"{type(model).__name__}: has no list of blocks to shard; train it without torchrun")
    return max(lists, key=len)


def recompute_activations(policy: Policy, *, offload: bool) -> None:
    """Keeps of each block only its input, in host memory with `offload`, and computes the rest again for gradients."""
    for block in blocks(policy.model):
        block.forward = partial(_recomputed, block.forward, offload)


def _recomputed(forward: Callable[..., Any], offload: bool, *inputs: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    pin = can_pin()
    with save_on_cpu(pin_memory=pin) if offload else nullcontext():
        # Blocks draw no random numbers: dropout is refused by our attention, and models are in eval mode.
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options)


@torch.no_grad()
def scatter_weights(scorer: Scorer, whole: Policy | None, world: World) -> None:
    """Fills a policy that was sharded on the meta device with the weights that rank 0 has loaded whole.

    One tensor travels at a time, so that no other rank ever holds more than one of them whole.
    """
    scorer.to_empty(device=world.device)
    given = dict(whole.model.named_parameters()) if whole is not None else {}
    for name, parameter in scorer.model.named_parameters():
        assert isinstance(parameter, DTensor)
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=world.device)
        if whole is not None:
            full.copy_(given[name])
        parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements))
    buffers = dict(whole.model.named_buffers()) if whole is not None else {}
    for name, buffer in scorer.model.named_buffers():
        if whole is not None:
            buffer.copy_(buffers[name])
        torch.distributed.broadcast(buffer, 0)
