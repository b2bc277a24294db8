"""Step `speed`: tokens per second of our own engine on the device, with proofs and without."""

import time

from shoal.doctor.steps.context import Context, Values
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load

ROUNDS = 2


def run(context: Context) -> Values:
    config = context.config
    dtype = context.speed_dtype
    policy = load(context.model, dtype, context.device)
    requests = context.requests(policy, config.workers.max_batch)
    best: dict[bool, float] = {}
    for turn in range(ROUNDS + 1):
        for proofs in (True, False):
            engine = TorchEngine(
                policy,
                max_batch=config.workers.max_batch,
                max_len=config.max_len,
                temperature=config.sampling.temperature,
                proofs=proofs,
            )
            began = time.monotonic()
            tokens = sum(len(answer.tokens) for answer in engine.generate(requests))
            if turn:  # the first round compiles and warms up
                best[proofs] = max(best.get(proofs, 0.0), tokens / (time.monotonic() - began))
    return {
        "dtype": dtype,
        "batch": config.workers.max_batch,
        "tokens_per_s_with_proofs": best[True],
        "tokens_per_s_without_proofs": best[False],
        "cost_of_proofs": best[False] / best[True],
    }
