"""Step `engine`: a float32 judge on the CPU accepts what our own engine generates on the device, and its proofs."""

import numpy as np

from shoal import toploc
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.protocol.rollout import bare_rollout
from shoal.validate.recompute import replay

ANSWERS = 16


def run(context: Context) -> Values:
    config, sampling = context.config, context.config.sampling
    policy = load(context.model, "float32", context.device)
    engine = TorchEngine(policy, max_batch=ANSWERS, max_len=config.max_len, temperature=sampling.temperature)
    requests = context.requests(policy, ANSWERS)
    made = sorted(engine.generate(requests), key=lambda answer: answer.key)
    rollouts = [
        bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish, answer.proof)
        for request, answer in zip(requests, made, strict=True)
    ]
    keys = [(request.seed, request.sample) for request in requests]
    judge = load(context.model, "float32")
    own = replay(judge, rollouts, keys, sampling.temperature, config.audit.token_budget)
    short = np.concatenate([np.asarray(answer.shortfalls_T) for answer in own])
    gaps = np.concatenate(
        [np.abs(answer.logprobs_T - rollout.logprobs) for answer, rollout in zip(own, rollouts, strict=True)]
    )
    limits = config.audit.thresholds
    proofs = [
        result
        for answer, rollout in zip(own, rollouts, strict=True)
        for result in toploc.verify(answer.states_TD.bfloat16(), rollout.proof)
    ]
    refused = sum(not toploc.accepts(result) for result in proofs)
    values: Values = {
        "tokens": len(short),
        "not_the_best": int((short > 0).sum()),
        "shortfall": float(short.max()),
        "logprob_gap": float(gaps.max()),
        "proofs": len(proofs),
        "proofs_refused": refused,
    }
    if short.max() > limits.shortfall or gaps.max() > limits.logprob or refused:
        raise StepFailed(
            f"a float32 judge rejects it: shortfall {short.max():.2g} (allowed {limits.shortfall:g}), log-prob gap "
            f"{gaps.max():.2g} (allowed {limits.logprob:g}), {refused} of {len(proofs)} proofs refused"
        )
    return values
