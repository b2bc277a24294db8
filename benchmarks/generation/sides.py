"""The same ragged work for each side of the engine benchmark: ours, transformers `generate`, and vLLM where it is.

All sides run in float32 on the same number of threads and draw from the plain softmax: no top-k, no top-p. Nothing ends
an answer but its own length, which none of them is told beforehand.
"""

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.process import Peer
from shoal.generate import torch_engine as engine_module
from shoal.generate.engine import Request
from shoal.generate.sampling import NoiseStream
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy
from shoal.process import KEEP_FREED_MEMORY, NO_HUB, SLEEP_WHEN_IDLE
from shoal.tasks.source import TaskSource

SHORTEST = 8
VLLM_SCRIPT = Path(__file__).parents[1] / "peers" / "vllm.py"
VLLM_DEADLINE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts, and how long the answer to each will be."""

    prompts: list[list[int]]
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def max_len(self) -> int:
        return max(len(prompt) + length for prompt, length in zip(self.prompts, self.lengths, strict=True))

    def first(self, count: int) -> "Work":
        return Work(self.prompts[:count], self.lengths[:count])

    def batches(self, size: int) -> Iterator["Work"]:
        for begin in range(0, len(self.prompts), size):
            yield Work(self.prompts[begin : begin + size], self.lengths[begin : begin + size])


def ragged_work(policy: Policy, tasks: TaskSource, count: int, longest: int) -> Work:
    """Answer lengths uniform in 8 .. longest, in no order, the same in every run."""
    rng = random.Random(0)
    prompts = [policy.encode(tasks.task("train", index).prompt) for index in range(count)]
    return Work(prompts, [rng.randint(SHORTEST, longest) for _ in range(count)])


class Ours:
    """Our engine, built again for each batch size as a worker would."""

    def __init__(self, policy: Policy) -> None:
        self._policy = replace(policy, eos_ids=frozenset())

    def tokens_per_s(self, work: Work, batch: int) -> float:
        requests = [
            Request(tuple(prompt), 0, sample, length)
            for sample, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
        ]
        engine = TorchEngine(self._policy, max_batch=batch, max_len=work.max_len, temperature=1.0, proofs=False)
        began = time.perf_counter()
        tokens = sum(len(completion.tokens) for completion in engine.generate(requests))
        seconds = time.perf_counter() - began
        assert tokens == work.tokens
        return tokens / seconds

    def sampling_share(self, prompt: list[int], batch: int, length: int) -> float:
        """Share of the time that drawing noise and choosing tokens takes when `batch` sequences decode side by side.

        They share one prompt, so that next to all of the time is decoding, and are short, so that attention costs
        little: sampling never has a larger share than here.
        """
        work = Work([prompt] * batch, [length] * batch)
        self.tokens_per_s(replace(work, lengths=[2] * batch), batch)  # warms caches
        with stopwatch(engine_module, "choose") as choose, stopwatch(NoiseStream, "next") as noise:
            speed = self.tokens_per_s(work, batch)
        return (choose.seconds + noise.seconds) / (work.tokens / speed)


@dataclass(slots=True)
class Clock:
    seconds: float = 0.0


@contextmanager
def stopwatch(owner: Any, name: str) -> Iterator[Clock]:
    """Adds up the time spent in a function while the block runs."""
    function = getattr(owner, name)
    clock = Clock()

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            clock.seconds += time.perf_counter() - began

    setattr(owner, name, timed)
    try:
        yield clock
    finally:
        setattr(owner, name, function)
    assert clock.seconds, f"{name} was never called: the engine samples in another way than this benchmark assumes"


class _OwnLength(StoppingCriteria):
    """Each row ends at its own length."""

    def __init__(self, ends_B: Tensor) -> None:
        self._ends_B = ends_B

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        del scores
        return input_ids.shape[1] >= self._ends_B


class Generate:
    """transformers `generate` as its documentation has it: left padding, attention mask, default cache, SDPA."""

    def __init__(self, directory: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._model.eval()
        # The model's own one would end answers at its eos token, and may bring a top-k along.
        self._model.generation_config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=None, pad_token_id=0
        )

    @torch.inference_mode()
    def tokens_per_s(self, work: Work, batch: int) -> float:
        began = time.perf_counter()
        for part in work.batches(batch):
            width = max(len(prompt) for prompt in part.prompts)
            ids_BT = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part.prompts])
            mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part.prompts])
            ends_B = torch.tensor(part.lengths) + width
            out_BT = self._model.generate(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                max_new_tokens=max(part.lengths),
                stopping_criteria=StoppingCriteriaList([_OwnLength(ends_B)]),
            )
            assert out_BT.shape[1] == int(ends_B.max())
        return work.tokens / (time.perf_counter() - began)


def vllm_tokens_per_s(model: Path, work: Work, threads: int) -> float:
    """vLLM on the same work, as a process of its own: it starts threads and workers that are not ours to share."""
    environment: Mapping[str, str] = {
        **KEEP_FREED_MEMORY,
        **SLEEP_WHEN_IDLE,
        **NO_HUB,
        "OMP_NUM_THREADS": str(threads),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    job = {"model": str(model), "prompts": work.prompts, "lengths": work.lengths, "max_len": work.max_len}
    with Peer("vllm", Path(sys.executable), VLLM_SCRIPT, environment=environment) as peer:
        answer = peer.ask(job, awaiting="its timing", deadline_s=VLLM_DEADLINE_S)
    return float(answer["tokens"]) / float(answer["seconds"])
