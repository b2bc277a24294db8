"""What a float32 judge on the CPU says of an engine's answers: the same thresholds as a validator's."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shoal import toploc
from shoal.doctor.steps.context import Context, StepFailed, Value, Values
from shoal.generate.engine import Completion, Request
from shoal.models.load import Policy
from shoal.protocol.rollout import bare_rollout
from shoal.validate.recompute import replay

# Beside the run's own: what divides logits by another number twice, or not at all, is not seen at 1.
COOLER = 0.6


def judge_at_temperatures(
    context: Context,
    policy: Policy,
    requests: Sequence[Request],
    answers_at: Callable[[float], Iterable[Completion]],
) -> Values:
    """Figures of answers at the run's temperature and at a cooler one: counts add up, and the worst distances count."""
    own = context.config.sampling.temperature
    first, second = (judge(context, policy, requests, answers_at(t), t) for t in (own, COOLER))
    both = {name: _both(first[name], second[name]) for name in first}
    return {**both, "temperatures": f"{own:g} {COOLER:g}"}


def _both(one: Value, other: Value) -> Value:
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    return max(one, other) if isinstance(one, float) else one + other


def judge(
    context: Context,
    policy: Policy,
    requests: Sequence[Request],
    made: Iterable[Completion],
    temperature: float | None = None,
) -> Values:
    """Figures of all answers; StepFailed if a validator would reject one. `policy` is float32, with their weights, and
    `temperature` that of the run if it is not given."""
    config, limits = context.config, context.config.audit.thresholds
    temperature = config.sampling.temperature if temperature is None else temperature
    answers = sorted(made, key=lambda answer: answer.key)
    rollouts = [
        bare_rollout(request.prompt, answer.tokens, answer.logprobs, answer.finish, answer.proof)
        for request, answer in zip(requests, answers, strict=True)
    ]
    keys = [(request.seed, request.sample) for request in requests]
    own = replay(policy, rollouts, keys, temperature, config.audit.token_budget)
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
            f"a float32 judge rejects it at temperature {temperature:g}: shortfall {short.max():.2g} "
            f"(allowed {limits.shortfall:g}), log-prob gap {gaps.max():.2g} (allowed {limits.logprob:g}), "
            f"{refused} of {len(proofs)} proofs refused"
        )
    return {
        "tokens": len(short),
        "not_the_best": int((short > 0).sum()),
        "shortfall": float(short.max()),
        "logprob_gap": float(gaps.max()),
        "proofs": len(proofs),
        "proofs_refused": refused,
    }
