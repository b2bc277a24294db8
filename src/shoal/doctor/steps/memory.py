"""Step `memory`: the peak of a training step on the device, against what `shoal plan` says of the same config."""

from shoal.devices import memory
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.doctor.steps.training import random_groups
from shoal.plan.assumptions import DEVICES
from shoal.plan.live_bytes import LiveBytes
from shoal.plan.memory import trainer_memory
from shoal.plan.model_shape import find_config, measure_shape, policy_on_meta
from shoal.plan.passes import measure_passes
from shoal.train.distributed import World
from shoal.train.learner import build_learner
from shoal.train.optimizer import local
from shoal.train.step import train_step

# What the plan is held to (docs/gpus.md).
WITHIN = 0.10
# Which figures of a device a plan takes its speed from has no influence on memory; whether it is a host has.
GPU, HOST = DEVICES["h100"], DEVICES["cpu"]


def run(context: Context) -> Values:
    sampling = context.config.sampling
    # Whole groups fill a row, as the plan takes them to; the last token of an answer is not read.
    row = 2 * (sampling.max_prompt_tokens + sampling.group_size * (sampling.max_new_tokens - 1))
    model = {"source": str(context.model), "dtype": "float32"}
    config = context.changed(model=model, train={"token_budget": row})
    planned_on = HOST if context.device.type == "cpu" else GPU
    architecture = find_config(config).config
    shape = measure_shape(policy_on_meta(architecture, "float32"))
    passes = measure_passes(config, lambda dtype: policy_on_meta(architecture, dtype), planned_on, planned_on)
    planned = trainer_memory(config, shape, passes, planned_on).total
    learner = build_learner(context.model, config, World(device=context.device))
    held = [local(tensor) for tensor in (*learner.policy.model.parameters(), *learner.policy.model.buffers())]
    if learner.reference is not None:
        frozen = learner.reference.policy.model
        held += [local(tensor) for tensor in (*frozen.parameters(), *frozen.buffers())]
    groups = random_groups(config, full=True)
    live = LiveBytes(held)
    with live:
        train_step(learner, groups, config, 0)
        live.peak = live.now
        train_step(learner, groups, config, 0)  # the second one has moments
    seen = memory(context.device).peak if planned_on is GPU else None
    values: Values = {"planned_bytes": planned, "tracked_bytes": live.peak, "plan_over_tracked": planned / live.peak}
    if seen is not None:
        values |= {"device_peak_bytes": seen, "plan_over_device_peak": planned / seen}
    if abs(planned / live.peak - 1) > WITHIN:
        raise StepFailed(
            f"shoal plan says {planned:,} bytes, a training step took {live.peak:,}; they may differ by {WITHIN:.0%}"
        )
    return values
