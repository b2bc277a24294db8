"""How long a step takes each role, and who keeps the others waiting: arithmetic on FLOPs, bandwidths and links."""

import math
from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.plan.assumptions import Assumptions
from shoal.plan.memory import kv_bytes, width, worker_dtype
from shoal.plan.model_shape import ModelShape
from shoal.plan.traffic import Sizes

# Noise is drawn on one core for the whole vocabulary at every token: 0.23 ms at 152,064 entries.
NOISE_S = 1.5e-9


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per training step, each role by itself; generation is that of a single worker."""

    training: float
    generation: float
    validation: float
    update: float
    """Until every worker has the new version, from relays that share their links among them."""
    upload: float
    """Files through the coordinator's link, in and twice out."""
    slots: int
    """Sequences that a worker generates at once."""
    tokens_per_s: float
    """Of one worker."""
    trained_tokens: float
    trained_flops: float

    @property
    def workers_needed(self) -> int:
        """Workers that keep the trainer busy."""
        return max(1, math.ceil(self.generation / self.training))

    def parts(self, workers: int) -> dict[str, float]:
        """Who takes how long."""
        return {
            "trainer": self.training,
            "workers": self.generation / workers,
            "validator": self.validation,
            "network of the relays": self.update,
            "network of the coordinator": self.upload,
        }

    def bottleneck(self, workers: int) -> str:
        parts = self.parts(workers)
        return max(parts, key=lambda name: parts[name])

    def seconds(self, workers: int, async_level: int) -> float:
        """A step's wall time: the slowest part, or all parts one after the other at async level 0."""
        parts = self.parts(workers)
        return max(parts.values()) if async_level else sum(parts.values())


@dataclass(frozen=True, slots=True)
class Passes:
    """How many forward passes a step's FLOPs are worth."""

    matrices: int
    """Of all blocks, without attention's scores."""
    attention: int
    head: int
    adapters: int


def training_passes(config: RunConfig) -> Passes:
    """Forward and backward count three forward passes, and two of matrices that adapters leave frozen: these have no
    gradient of their own. Log-probs ahead of several optimizer steps and those of the reference, which is without
    adapters, count one each, and activation checkpointing computes all blocks once more. So does the head, always: it
    is computed again when its gradient is due.
    """
    ahead = 1 if config.train.optimizer_steps > 1 else 0
    reference = 1 if config.train.loss.kl_coef > 0 else 0
    recomputed = 1 if config.train.activation_checkpointing else 0
    is_adapted = config.train.lora is not None
    both = 2 if is_adapted else 3
    return Passes(
        matrices=both + ahead + reference + recomputed,
        attention=3 + ahead + reference + recomputed,
        head=both + ahead + reference + 1,
        adapters=3 + ahead + recomputed if is_adapted else 0,
    )


def training_flops(config: RunConfig, shape: ModelShape, assumed: Assumptions) -> tuple[float, float]:
    """Tokens of a step, each group's prompt once, and the FLOPs of all passes over them."""
    groups, size = config.train.groups_per_step, config.sampling.group_size
    answers = groups * size * assumed.answer_tokens
    prompts = groups * assumed.prompt_tokens
    passes, tokens = training_passes(config), prompts + answers
    pairs = prompts * assumed.prompt_tokens / 2 + answers * (assumed.prompt_tokens + assumed.answer_tokens / 2)
    per_token = passes.matrices * shape.flops_per_token + passes.adapters * shape.adapter_flops
    flops = per_token * tokens + passes.attention * shape.pair_flops * pairs
    return tokens, flops + passes.head * answers * shape.head_flops


def decoding(config: RunConfig, shape: ModelShape, assumed: Assumptions, slots: int) -> float:
    """Tokens per second of one worker that decodes `slots` sequences at once.

    Every token reads all weights once for all sequences, and each sequence's own keys and values; where that is less
    work than computing, computing decides. Several devices share both; what they exchange is not counted. The noise is
    drawn one sequence after the other.
    """
    device, dtype, devices = assumed.worker, worker_dtype(config), config.workers.tensor_parallel
    context = assumed.prompt_tokens + assumed.answer_tokens / 2
    read = shape.parameters * width(dtype) + slots * context * shape.kv_values * width(dtype)
    computed = slots * (shape.forward_flops(context) + shape.head_flops)
    seconds = max(read / (device.bytes_per_s * assumed.decode_use), computed / (device.flops * assumed.prefill_use))
    seconds /= devices
    return slots / (seconds + slots * shape.vocab * NOISE_S)


def slots_that_fit(config: RunConfig, shape: ModelShape, assumed: Assumptions, other: int) -> int:
    """Sequences for which a worker's device has room beside `other` bytes; at least one, to have a speed at all."""
    room = assumed.worker.memory - assumed.reserve - other
    one = kv_bytes(config, shape, worker_dtype(config), config.workers.tensor_parallel)
    return max(1, min(config.workers.max_batch, room // one))


def step_time(config: RunConfig, shape: ModelShape, assumed: Assumptions, sizes: Sizes, *, slots: int) -> StepTime:
    """All parts of one step."""
    tokens, flops = training_flops(config, shape, assumed)
    sampled = sizes.files * config.workers.groups_per_submission * config.sampling.group_size * assumed.answer_tokens
    prompts = sizes.files * config.workers.groups_per_submission * assumed.prompt_tokens
    forward = shape.forward_flops(assumed.prompt_tokens + assumed.answer_tokens / 2) + shape.head_flops
    prefill = assumed.worker.flops * assumed.prefill_use
    speed = decoding(config, shape, assumed, slots)
    reading = prompts * shape.forward_flops(assumed.prompt_tokens / 2) / (prefill * config.workers.tensor_parallel)
    checked = min(1.0, config.audit.rate + config.audit.spot_share) * sampled
    redrawn = shape.vocab * NOISE_S if config.sampling.mode == "seeded" else 0.0
    nodes, relays = config.workers.count + 1, max(1, len(config.swarm.relays))
    return StepTime(
        training=flops / (config.train.ranks * assumed.trainer.flops * assumed.train_use),
        generation=sampled / speed + reading,
        validation=checked * (forward / prefill + redrawn),
        update=sizes.update * -(-nodes // relays) / assumed.bytes_per_s,
        upload=2 * sizes.uploads / assumed.bytes_per_s,
        slots=slots,
        tokens_per_s=speed,
        trained_tokens=tokens,
        trained_flops=flops,
    )
