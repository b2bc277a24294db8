"""What a float32 judge on the CPU says of an engine's answers: the same thresholds as a validator's."""

from collections.abc import Iterable, Sequence

import numpy as np

from shoal import toploc
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.generate.engine import Completion, Request
from shoal.models.load import Policy
from shoal.protocol.rollout import bare_rollout
from shoal.validate.recompute import replay


def judge(context: Context, policy: Policy, requests: Sequence[Request], made: Iterable[Completion]) -> Values:
    """Figures of all answers; StepFailed if a validator would reject one. `policy` is float32, with their weights."""
    config, limits = context.config, context.config.audit.thresholds
    answers = sorted(made, key=lambda answer: answer.key)
    rollouts = [
        bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish, answer.proof)
        for request, answer in zip(requests, answers, strict=True)
    ]
    keys = [(request.seed, request.sample) for request in requests]
    own = replay(policy, rollouts, keys, config.sampling.temperature, config.audit.token_budget)
    short = np.concatenate([np.asarray(one.shortfalls_T) for one in own])
    gaps = np.concatenate(
        [np.abs(one.logprobs_T - rollout.logprobs) for one, rollout in zip(own, rollouts, strict=True)]
    )
    proofs = [
        result
        for one, rollout in zip(own, rollouts, strict=True)
        for result in toploc.verify(one.states_TD.bfloat16(), rollout.proof)
    ]
    refused = sum(not toploc.accepts(result) for result in proofs)
    if short.max() > limits.shortfall or gaps.max() > limits.logprob or refused:
        raise StepFailed(
            f"a float32 judge rejects it: shortfall {short.max():.2g} (allowed {limits.shortfall:g}), log-prob gap "
            f"{gaps.max():.2g} (allowed {limits.logprob:g}), {refused} of {len(proofs)} proofs refused"
        )
    return {
        "tokens": len(short),
        "not_the_best": int((short > 0).sum()),
        "shortfall": float(short.max()),
        "logprob_gap": float(gaps.max()),
        "proofs": len(proofs),
        "proofs_refused": refused,
    }
