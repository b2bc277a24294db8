"""A cheat's logits processor for vLLM's V1 runner: leaves the five likeliest tokens, before noise is added."""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="misc"

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

from shoal.attacks.texts import TOP_K


class TopK(LogitsProcessor):
    """Sampled from the five likeliest tokens."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        del batch_update

    def apply(self, logits: Tensor) -> Tensor:
        least_B1 = logits.topk(TOP_K).values[:, -1:]
        return torch.where(logits < least_B1, -1e9, logits)
