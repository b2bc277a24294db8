"""Step `vllm-v2`: the same for vLLM's V2 model runner, whose interface for logits processors is another."""

from shoal.doctor.steps import vllm_v1
from shoal.doctor.steps.context import Context, Values


def run(context: Context) -> Values:
    return vllm_v1.run(context, runner=2)
