"""Memory of each role's device, item by item: pure arithmetic on a config, a model's shape and its passes."""

from dataclasses import dataclass

import torch

from shoal.config import RunConfig
from shoal.devices import DTYPES
from shoal.generate.proof_builder import CHUNK
from shoal.plan.assumptions import Device
from shoal.plan.model_shape import ModelShape
from shoal.plan.passes import PassBytes, compute_dtype
from shoal.train.optimizer import PIECE
from shoal.validate.recompute import MAX_LOGITS, MAX_NOISE

FLOAT32 = 4
# Tensors of one number per logit that exist at once while a token is drawn or checked: logits, scaled, noisy, exp.
LOGIT_TENSORS = 4

Items = dict[str, int]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a role holds on its device, and beside it on its host."""

    device: Items
    host: Items

    @property
    def total(self) -> int:
        """Of the device."""
        return sum(self.device.values())

    def on(self, device: Device) -> int:
        """All that takes memory of this device."""
        return self.total + sum(self.host.values()) * device.is_host


def width(dtype: str) -> int:
    """Bytes of one number."""
    return DTYPES[dtype].itemsize


def version_bytes(config: RunConfig, shape: ModelShape) -> int:
    """A published version, whole."""
    return shape.parameters * width(config.model.dtype)


def update_bytes(config: RunConfig, shape: ModelShape, delta_share: float) -> int:
    """What travels of a new version: its adapter, or a delta to the one before."""
    if shape.adapter_parameters:
        return shape.adapter_parameters * FLOAT32
    return round(version_bytes(config, shape) * delta_share)


def trained_parameters(shape: ModelShape) -> int:
    """Parameters that have gradients, moments and a place in checkpoints."""
    return shape.adapter_parameters or shape.parameters


def is_sharded(config: RunConfig, trainer: Device) -> bool:
    """Whether the trainer's model is sharded: over several ranks, or to compute in a narrower format than it keeps."""
    return config.train.ranks > 1 or compute_dtype(config, trainer) != "float32"


def trainer_memory(config: RunConfig, shape: ModelShape, passes: PassBytes, trainer: Device) -> Memory:
    """One rank: its share of float32 weights, gradients, moments and of the reference, what it gathers of the others'
    shares to compute, and one micro-batch.

    What is gathered are embeddings and head with their gradients, this block and the next one, and this block's
    gradient in both formats. The optimizer's own copy of a piece is never there together with activations.

    Under adapters, only those have master weights, gradients and moments; the base is held as it is computed, and is
    the reference as well.
    """
    train, computed = config.train, width(compute_dtype(config, trainer))
    share, base = -(-trained_parameters(shape) // train.ranks), -(-shape.parameters // train.ranks)
    adapted = shape.adapter_parameters > 0
    gathered = 2 * computed * shape.outside_parameters + (3 * computed + FLOAT32) * shape.block_parameters
    activations = passes.stored
    if train.activation_checkpointing:
        activations = passes.recomputed - passes.block_inputs * train.offload_activations
    moments = 2 * share * FLOAT32
    return Memory(
        {
            "weights": share * FLOAT32 + base * computed * adapted,
            "gradients": share * FLOAT32,
            "moments": 0 if train.offload_optimizer else moments,
            "reference": base * computed * (train.loss.kl_coef > 0 and not adapted),
            "gathered": gathered * is_sharded(config, trainer),
            "activations": max(activations, min(PIECE, share) * FLOAT32),
        },
        {
            "moments": moments if train.offload_optimizer else 0,
            "block inputs": passes.block_inputs * train.offload_activations,
            "checkpoint being written": 3 * share * FLOAT32,
        },
    )


def worker_dtype(config: RunConfig) -> str:
    return config.workers.dtype or config.model.dtype


def kv_bytes(config: RunConfig, shape: ModelShape, dtype: str, devices: int = 1) -> int:
    """Keys and values of one sequence at its longest on each device: every slot of the cache has room for that."""
    return -(-shape.kv_values // devices) * config.max_len * width(dtype)


def engine_memory(
    config: RunConfig, shape: ModelShape, passes: PassBytes, dtype: str, slots: int, devices: int = 1
) -> Memory:
    """Weights, a cache with room for `slots` sequences, a row of prompts, and the logits of one token each. Several
    devices share weights and cache; each has all logits, and is taken to have all of a row of prompts."""
    return Memory(
        {
            "weights": -(-shape.parameters // devices) * width(dtype),
            "KV cache": slots * kv_bytes(config, shape, dtype, devices),
            "prefill": passes.prefill,
            "logits": LOGIT_TENSORS * slots * shape.vocab * FLOAT32,
        },
        {},
    )


def proof_states(shape: ModelShape, slots: int) -> int:
    """Final states of running answers, in bfloat16: those of one chunk each, of which a proof is then built."""
    return slots * CHUNK * shape.hidden * width("bfloat16")


def worker_memory(config: RunConfig, shape: ModelShape, passes: PassBytes) -> Memory:
    """The engine on each of its devices, and the states that proofs are made of."""
    dtype = worker_dtype(config)
    slots = min(config.workers.max_batch, config.workers.groups_per_submission * config.sampling.group_size)
    engine = engine_memory(config, shape, passes, dtype, slots, config.workers.tensor_parallel)
    return Memory({**engine.device, "states for proofs": proof_states(shape, slots)}, {})


def evaluator_memory(config: RunConfig, shape: ModelShape, passes: PassBytes) -> Memory:
    return engine_memory(config, shape, passes, config.model.dtype, config.workers.max_batch)


def validator_memory(config: RunConfig, shape: ModelShape, passes: PassBytes) -> Memory:
    """Float32 weights, whatever the format of versions is, a row of answers and some of their logits. Versions that
    files may be made with are read from their files, tensor by tensor, and take no memory beside them.

    In a bfloat16 run some files are also computed with other weights: these replace the own ones tensor by tensor, so
    there are two numbers more for each of the largest one: the changed one, and what it is made from.

    vLLM is counted where the config asks for it by name: under auto torch takes its place where it has no room.
    """
    compares = config.model.dtype == "bfloat16" and config.audit.shift_rate > 0
    own = shape.parameters * torch.float32.itemsize
    largest = max(shape.block_parameters, shape.vocab * shape.hidden)
    states = config.audit.token_budget * shape.hidden * FLOAT32
    return Memory(
        {
            "weights": own,
            "a tensor to compare with": 2 * largest * FLOAT32 * compares,
            "activations": passes.recomputing + states,
            "logits": LOGIT_TENSORS * max(MAX_LOGITS, shape.vocab) * FLOAT32,
            "vLLM for states": states_memory(config, shape, passes) * (config.audit.engine == "vllm"),
        },
        {
            "noise": 2 * max(MAX_NOISE, shape.vocab) * FLOAT32,  # as it is drawn, and side by side
        },
    )


def states_memory(config: RunConfig, shape: ModelShape, passes: PassBytes) -> int:
    """What vLLM takes beside a validator's policy if it computes states: weights in float32, too, the keys and values
    of some forward passes, and one pass."""
    tokens = 2 * max(config.audit.token_budget, config.max_len) + config.max_len
    return (shape.parameters + shape.kv_values * tokens) * FLOAT32 + passes.recomputing
