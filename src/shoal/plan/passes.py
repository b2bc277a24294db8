"""Activations of a run's own forward and backward passes, counted on the meta device.

The code that trains, recomputes and prefills is the one that runs; only its tensors have no numbers. So the count holds
for every architecture, and follows the code when that changes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from shoal.config import RunConfig
from shoal.devices import META
from shoal.generate.torch_engine import PREFILL_TOKENS
from shoal.models.attention import Packed, Recording, SharedPrompt
from shoal.models.load import Policy
from shoal.models.lora import attach
from shoal.plan.assumptions import Device
from shoal.plan.live_bytes import LiveBytes
from shoal.plan.meta_rows import MetaPacked
from shoal.rl.logprobs import chosen_logprobs
from shoal.train.sharding import blocks, recompute_activations


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Bytes that each pass takes at its peak, beside weights and gradients."""

    stored: int
    """A micro-batch of train.token_budget tokens, forward and backward, all activations stored."""
    recomputed: int
    """The same with activation checkpointing: the inputs of all blocks, and all of one block."""
    block_inputs: int
    """Those inputs, which offload_activations keeps in host memory."""
    recomputing: int
    """A validator's row of audit.token_budget tokens, forward."""
    prefill: int
    """A row of prompts in the engine, with their keys and values."""


def compute_dtype(config: RunConfig, trainer: Device) -> str:
    """What a trainer computes in: bfloat16 if the run does and its device can."""
    return "float32" if trainer.is_host else config.model.dtype


def measure_passes(config: RunConfig, outlined: Callable[[str], Policy], trainer: Device, worker: Device) -> PassBytes:
    """All passes of a run; `outlined` gives its policy on the meta device, in the format that a pass computes in."""
    longest = min(config.max_len, config.audit.token_budget)
    sampling = config.sampling
    # Answers of one prompt stand side by side, and it is prefilled once for them.
    asked = -(-config.workers.max_batch // sampling.group_size)
    prompts = max(1, min(asked, PREFILL_TOKENS // sampling.max_prompt_tokens))
    row, temperature = training_row(config), config.sampling.temperature
    policy = outlined(compute_dtype(config, trainer))
    if config.train.lora is not None:
        attach(policy.model, config.train.lora, config.seed)
    stored = training_bytes(policy, row, temperature, on_cpu=trainer.is_host)
    recompute_activations(policy, offload=False)
    inputs = len(blocks(policy.model)) * sum(family.prompt + sum(family.answers) for family in row) * policy.hidden_size
    return PassBytes(
        stored=stored,
        recomputed=training_bytes(policy, row, temperature, on_cpu=trainer.is_host),
        block_inputs=inputs * policy.model.dtype.itemsize,
        recomputing=forward_bytes(
            outlined("float32"),
            MetaPacked([longest] * max(1, config.audit.token_budget // longest), on_cpu=worker.is_host),
        ),
        prefill=forward_bytes(
            outlined(config.workers.dtype or config.model.dtype),
            Recording(MetaPacked([config.sampling.max_prompt_tokens] * prompts, on_cpu=worker.is_host)),
        ),
    )


def training_row(config: RunConfig) -> list[SharedPrompt]:
    """The fullest micro-batch: groups of the longest prompts and answers, as many as fit the token budget."""
    sampling, budget = config.sampling, config.train.token_budget
    answer = sampling.max_new_tokens - 1  # the last token is not fed
    row: list[SharedPrompt] = []
    while (room := budget - sampling.max_prompt_tokens) >= answer:
        answers = min(sampling.group_size, room // answer if answer else sampling.group_size)
        row.append(SharedPrompt(sampling.max_prompt_tokens, (answer,) * answers))
        budget -= sampling.max_prompt_tokens + answers * answer
    return row


def training_bytes(policy: Policy, row: list[SharedPrompt], temperature: float, *, on_cpu: bool) -> int:
    """Peak of one micro-batch, forward and backward, while the gradients of earlier ones exist."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    layout = MetaPacked(row, on_cpu=on_cpu)
    targets_A = _integers(sum(length + 1 for family in row for length in family.answers))
    with _rise(policy) as live:
        hidden_TD = policy.hidden(_integers(1, layout.tokens), layout.positions_1T, layout)[0]
        logp_A, entropy_A = chosen_logprobs(
            hidden_TD[targets_A], policy.head, targets_A, temperature=temperature, vocab=policy.vocab
        )
        torch.autograd.backward((logp_A + entropy_A).sum())
    return live.peak


@torch.no_grad()
def forward_bytes(policy: Policy, layout: Packed | Recording) -> int:
    """Peak of one forward pass without gradients."""
    row = layout.packed if isinstance(layout, Recording) else layout
    with _rise(policy) as live:
        policy.hidden(_integers(1, row.tokens), row.positions_1T, layout)
    return live.peak


def _integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=META)


@contextmanager
def _rise(policy: Policy) -> Iterator[LiveBytes]:
    """Counts what is made from here on; parameters and gradients are known to be there, and not counted."""
    parameters = list(policy.model.parameters())
    live = LiveBytes([*parameters, *(p.grad for p in parameters if p.grad is not None)])
    held, live.peak = live.now, 0
    with META, live:  # what a kernel makes where it computes is then made there as well
        yield live
    live.peak -= held
