"""Step `vllm-v1`: a float32 judge accepts answers and proofs of vLLM's V1 model runner, through its V1 interface."""

from shoal.doctor.steps.context import Context, StepSkipped, Values
from shoal.doctor.steps.judged import judge_at_temperatures
from shoal.doctor.steps.vllm_engine import answers_of, vllm_engine
from shoal.models.load import load

ANSWERS = 16
RUNNER = 1


def run(context: Context, runner: int = RUNNER) -> Values:
    policy = load(context.model)
    requests = context.requests(policy, ANSWERS)
    with vllm_engine(context, context.model, runner=runner) as engine:
        if (used := engine.runner()) != runner:
            raise StepSkipped(f"vLLM was told to use its V{runner} model runner, and uses V{used} here")
        found = judge_at_temperatures(context, policy, requests, answers_of(engine, requests))
        eager, mode = engine.graphs()
    return {**found, "enforce_eager": eager, "cudagraph_mode": mode, "model_runner": used}
