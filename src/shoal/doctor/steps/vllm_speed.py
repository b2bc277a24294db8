"""Step `vllm-speed`: tokens per second of vLLM with our noise and proofs, and of plain vLLM on the same prompts."""

import time

from shoal.doctor.steps.context import Context, Values
from shoal.doctor.steps.vllm_engine import vllm_engine
from shoal.models.load import load

ROUNDS = 3


def run(context: Context) -> Values:
    config = context.config
    dtype = context.speed_dtype
    requests = context.requests(load(context.model), config.workers.max_batch)
    best: dict[bool, float] = {}
    for plain in (False, True):
        with vllm_engine(context, context.model, dtype=dtype, plain=plain) as engine:
            for turn in range(ROUNDS + 1):
                began = time.monotonic()
                tokens = sum(len(answer.tokens) for answer in engine.generate(requests))
                if turn:  # the first round captures graphs and warms up
                    best[plain] = max(best.get(plain, 0.0), tokens / (time.monotonic() - began))
    return {
        "dtype": dtype,
        "batch": config.workers.max_batch,
        "tokens_per_s": best[False],
        "tokens_per_s_plain": best[True],
        "cost": best[True] / best[False],
    }
