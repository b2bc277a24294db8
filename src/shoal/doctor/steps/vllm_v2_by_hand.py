"""vLLM's V2 interface for logits processors where its V2 model runner cannot run: the runner's part is done by hand.

The processor is built by vLLM, and given batches as the runner lays them out: slots that requests keep, rows in any
order, states through `compute_logits`. The states are those of our own engine.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from shoal.devices import CPU
from shoal.generate.engine import Completion, Request
from shoal.generate.torch_engine import TorchEngine
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.captured_states import CAPTURED
from shoal.models.load import Policy

PROCESSOR = "shoal.generate.vllm.logits_processor_v2:SeededNoiseV2"


def runner_states(prompts: Sequence[int], vocab: int) -> Any:
    """The buffers of the model runner that a processor may read; `prompts` are their lengths, by slot."""
    return SimpleNamespace(
        device=CPU,
        max_num_reqs=len(prompts),
        vocab_size=vocab,
        all_token_ids=None,
        prompt_len=SimpleNamespace(np=np.array(prompts, dtype=np.int32)),
        prefill_len=None,
        total_len=None,
    )


def batch_of(slots: Sequence[int], read: Sequence[int]) -> Any:
    """The layout of a batch: the slot of each row, and how many tokens of its sequence have been read."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

    index, none = torch.tensor(slots, device=CPU), torch.zeros(len(slots), dtype=torch.long, device=CPU)
    return LogitsContext(
        expanded_idx_mapping=index,
        idx_mapping=index,
        idx_mapping_np=np.array(slots),
        expanded_local_pos=none,
        input_ids=none,
        pos=torch.tensor(read, device=CPU) - 1,
        seq_lens_upper_bound_np=np.array([*read, 999]),  # padded, as vLLM pads it
    )


def processor_of(states: Any) -> Any:
    """Our V2 processor, as vLLM builds it."""
    from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors

    (processor,) = build_custom_logits_processors(None, states, False, [PROCESSOR])
    return processor


def answers_by_hand(policy: Policy, requests: Sequence[Request], temperature: float, max_len: int) -> list[Completion]:
    """Tokens, log-probs and proofs that the processor makes of our engine's states, all requests side by side."""
    from vllm import SamplingParams

    engine = TorchEngine(policy, max_batch=len(requests), max_len=max_len, temperature=temperature)
    own = sorted(engine.generate(requests, hidden=True), key=lambda answer: answer.key)
    processor = processor_of(runner_states([len(request.prompt) for request in requests], policy.vocab))
    for slot, request in enumerate(requests):
        asked = Asked(slot, request.seed, request.sample, temperature, proof=True)
        processor.add_request(slot, SamplingParams(temperature=0.0, extra_args=asked.extra_args))
    model = SimpleNamespace(compute_logits=lambda states_BD: policy.head(states_BD).float())
    CAPTURED.watch(model, builds=True)
    drawn: list[list[tuple[int, float]]] = [[] for _ in requests]
    rng = Random(0)
    for place in range(max(len(answer.tokens) for answer in own)):
        slots = [slot for slot, answer in enumerate(own) if place < len(answer.tokens)]
        rng.shuffle(slots)
        read = [len(requests[slot].prompt) + place for slot in slots]
        states_BD = torch.stack([_states(own[slot])[place] for slot in slots])
        left_BV = processor.apply(model.compute_logits(states_BD), batch_of(slots, read))
        for slot, row_V in zip(slots, left_BV, strict=True):
            drawn[slot].append((int(row_V.argmax()), float(row_V.max())))
    return [
        Completion(slot, [t for t, _ in made], [p for _, p in made], own[slot].finish, CAPTURED.take(slot, len(made)))
        for slot, made in enumerate(drawn)
    ]


def _states(answer: Completion) -> torch.Tensor:
    assert answer.hidden_TD is not None  # asked for above
    return answer.hidden_TD
