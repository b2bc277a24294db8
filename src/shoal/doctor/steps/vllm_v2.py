"""Step `vllm-v2`: the same for vLLM's V2 model runner, whose interface for logits processors is another.

The runner needs Triton on a device. On a CPU the step does the runner's part by hand.
"""

import importlib.util

from shoal.doctor.steps import vllm_v1
from shoal.doctor.steps.context import Context, StepSkipped, Values
from shoal.doctor.steps.judged import judge_at_temperatures
from shoal.generate.engine import Completion
from shoal.models.load import load


def run(context: Context) -> Values:
    if context.device.type != "cpu":
        return {**vllm_v1.run(context, runner=2), "runner_by_hand": False}
    if importlib.util.find_spec("vllm") is None:
        raise StepSkipped("vLLM is not installed")
    from shoal.doctor.steps.vllm_v2_by_hand import answers_by_hand

    policy, config = load(context.model), context.config
    requests = context.requests(policy, vllm_v1.ANSWERS)

    def answers_at(temperature: float) -> list[Completion]:
        return answers_by_hand(policy, requests, temperature, config.max_len)

    return {**judge_at_temperatures(context, policy, requests, answers_at), "runner_by_hand": True}
