"""What one rank trains: its share of the policy, of the reference model and of the optimizer's state."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.config import RunConfig, TrainConfig
from shoal.devices import CPU, training_dtype
from shoal.models.load import Policy, load, outline, trainable
from shoal.models.lora import attach
from shoal.train.distributed import ALONE, World
from shoal.train.optimizer import AdamW, local
from shoal.train.scorer import Scorer, Unadapted
from shoal.train.sharding import recompute_activations, scatter_weights, sharded


@dataclass(frozen=True, slots=True)
class Learner:
    """A policy in training, with the base model that a KL term holds it to, if there is one."""

    scorer: Scorer
    reference: Scorer | None
    optimizer: AdamW
    world: World = ALONE

    @property
    def policy(self) -> Policy:
        return self.scorer.policy

    def state_bytes(self) -> dict[str, int]:
        """Bytes of training state on this rank."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = self.optimizer.state.values()
        reference = self.reference.policy if self.reference else None
        return {
            "weights": _bytes((self.policy.weights() | self.policy.trained_weights()).values()),
            "gradients": _bytes(p.grad for p in parameters if p.grad is not None),
            "moments": _bytes(t for state in moments for t in state.values()),
            "reference": _bytes(reference.weights().values()) if reference and reference is not self.policy else 0,
        }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(t).nbytes for t in tensors)


def alone(policy: Policy, reference: Policy | None, optimizer: AdamW) -> Learner:
    """A learner in one process, of a policy as it is."""
    return Learner(Scorer(policy), Scorer(reference) if reference else None, optimizer)


def build_learner(base: Path, config: RunConfig, world: World = ALONE, compute: torch.dtype | None = None) -> Learner:
    """The base model, sharded unless one process computes in the format of the master weights, and a fresh optimizer.

    Rank 0 alone loads the model from disk; the others get their shares from it. `compute` is the format of the forward
    and backward pass: that of the run, where the device has it.
    """
    train = config.train
    compute = compute or _compute_dtype(config, world.device)
    has_reference = train.loss.kl_coef > 0
    plain = world.size == 1 and compute == torch.float32
    whole = _base(base, config, world.device if plain else CPU) if world.is_first else None
    world.all(True)  # rank 0 may have waited for the run and for its disk longer than an exchange of weights may take
    if plain:
        assert whole is not None
        reference = _frozen(Scorer(copy.deepcopy(whole))) if has_reference and not train.lora else None
        policy, host = whole, CPU
        _spare_activations(policy, train)
        scorer = Scorer(policy)
    else:
        policy, host = _outline(base, config, compute), world.mesh("cpu")
        _spare_activations(policy, train)
        scorer = sharded(policy, world, compute=compute)
        scatter_weights(scorer, whole, world)
        reference = None
        if has_reference and not train.lora:
            reference = _frozen(sharded(outline(base, compute), world, compute=compute))
            scatter_weights(reference, whole, world)
    optimizer = AdamW(
        [p for _, p in trainable(policy.model)],
        lr=train.lr,
        betas=train.betas,
        weight_decay=train.weight_decay,
        host=host if train.offload_optimizer else None,
    )
    if has_reference and train.lora:
        reference = Unadapted(scorer)
    return Learner(scorer, reference, optimizer, world)


def _base(directory: Path, config: RunConfig, device: torch.device) -> Policy:
    """The base model as it is trained, with adapters where the config says so."""
    policy = load(directory, device=device)
    if config.train.lora is not None:
        attach(policy.model, config.train.lora, config.seed)
    return policy


def _outline(directory: Path, config: RunConfig, compute: torch.dtype) -> Policy:
    """The same without its numbers. Under adapters no master weights are needed: the base is held as it is computed."""
    if config.train.lora is None:
        return outline(directory)
    policy = outline(directory, compute)
    attach(policy.model, config.train.lora, config.seed)
    return policy


def _compute_dtype(config: RunConfig, device: torch.device) -> torch.dtype:
    return torch.float32 if config.model.dtype == "float32" else training_dtype(device)


def _spare_activations(policy: Policy, train: TrainConfig) -> None:
    if train.activation_checkpointing:
        recompute_activations(policy, offload=train.offload_activations)


def _frozen(scorer: Scorer) -> Scorer:
    scorer.requires_grad_(False)
    return scorer
