"""Step `vllm-reload`: two more versions without a restart; fingerprints hold, and a judge of each accepts answers."""

import torch

from shoal.doctor.steps.context import Context, Values
from shoal.doctor.steps.judged import judge_at_temperatures
from shoal.doctor.steps.vllm_engine import answers_of, vllm_engine, written
from shoal.models.load import load

ANSWERS = 8
STEP = 1e-2


def run(context: Context) -> Values:
    policy = load(context.model)
    requests = context.requests(policy, ANSWERS)
    before = {name: tensor.clone() for name, tensor in policy.weights().items()}
    generator = torch.Generator().manual_seed(1)
    after = {name: w + STEP * torch.randn(w.shape, generator=generator) for name, w in before.items()}
    folders = [
        (written(context.scratch / name, context.model, weights), weights)
        for name, weights in (("one", after), ("two", before))
    ]
    worst = 0.0
    with vllm_engine(context, context.model) as engine:
        for folder, weights in folders:
            engine.load(folder, f"version {folder.name}")
            policy.set_weights(weights, folder.name)
            found = judge_at_temperatures(context, policy, requests, answers_of(engine, requests))
            worst = max(worst, float(found["logprob_gap"]))
    return {"loads": len(folders), "logprob_gap": worst}
