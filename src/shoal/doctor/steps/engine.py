"""Step `engine`: a float32 judge on the CPU accepts what our own engine generates on the device, and its proofs."""

from shoal.doctor.steps.context import Context, Values
from shoal.doctor.steps.judged import judge
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load

ANSWERS = 16


def run(context: Context) -> Values:
    policy = load(context.model, "float32", context.device)
    temperature = context.config.sampling.temperature
    engine = TorchEngine(policy, max_batch=ANSWERS, max_len=context.config.max_len, temperature=temperature)
    requests = context.requests(policy, ANSWERS)
    return judge(context, load(context.model), requests, engine.generate(requests))
