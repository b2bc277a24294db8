"""The trainer's part of the compute ledger: what a token costs its model, and what a step cost."""

from collections.abc import Sequence
from dataclasses import asdict

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.plan.model_shape import measure_shape, policy_on_meta
from shoal.plan.step_time import training_passes
from shoal.protocol.rollout import Rollout
from shoal.protocol.work import work_of
from shoal.telemetry.compute import Costs


class TrainingFlops:
    """FLOPs from the shape of the model, which is measured once on the meta device."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        shape = measure_shape(policy_on_meta(policy.model.config, "float32"), config.train.lora)
        self.costs = Costs(token=shape.flops_per_token, head=shape.head_flops, pair=shape.pair_flops)
        self._parameters, self._adapter = shape.parameters, shape.adapter_flops
        self._passes = training_passes(config)

    def model(self) -> dict[str, float]:
        """What others need to turn counts into FLOPs."""
        return {f"{name}_flops": value for name, value in asdict(self.costs).items()} | {"parameters": self._parameters}

    def trained(self, samples: Sequence[Rollout]) -> float:
        """All passes of a step over its samples; those of one group stand side by side."""
        work, passes = work_of(samples), self._passes
        per_token = passes.matrices * self.costs.token + passes.adapters * self._adapter
        body = per_token * work.fed + passes.attention * self.costs.pair * work.pairs
        return body + passes.head * self.costs.head * work.drawn
