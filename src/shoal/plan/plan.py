"""The plan of a run: for each role what it needs, and whether that fits; for the run, how long a step takes and why.

`make_plan` is a function of values. `plan_run` measures them: the model's shape and passes on the meta device, and the
size of a rollout file.
"""

from dataclasses import dataclass, field
from functools import partial

from shoal.config import RunConfig
from shoal.plan.assumptions import GB, Assumptions, Device
from shoal.plan.file_size import file_bytes
from shoal.plan.memory import (
    Memory,
    evaluator_memory,
    kv_bytes,
    states_memory,
    trainer_memory,
    validator_memory,
    worker_dtype,
    worker_memory,
)
from shoal.plan.model_shape import ModelShape, find_config, measure_shape, policy_on_meta
from shoal.plan.passes import PassBytes, measure_passes
from shoal.plan.step_time import StepTime, slots_that_fit, step_time
from shoal.plan.traffic import (
    Sizes,
    Traffic,
    coordinator_traffic,
    origin_traffic,
    relay_traffic,
    sizes_of,
    trainer_traffic,
    validator_traffic,
    worker_traffic,
)

NO_MEMORY = Memory({}, {})
NO_TRAFFIC = Traffic({}, {}, {})


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role on one machine."""

    role: str
    memory: Memory = NO_MEMORY
    traffic: Traffic = NO_TRAFFIC
    device: Device | None = None
    """None for a role that computes nothing."""
    reserve: int = 0
    hints: tuple[str, ...] = ()
    """What would change its memory."""
    ranks: int = 1
    """Devices that the role is split over."""

    @property
    def spare(self) -> int | None:
        """Bytes of the device that are left; negative where they are missing."""
        return None if self.device is None else self.device.memory - self.reserve - self.memory.on(self.device)

    @property
    def fits(self) -> bool:
        return self.spare is None or self.spare >= 0

    @property
    def verdict(self) -> str:
        if self.device is None or self.spare is None:
            return "needs a disk and a link"
        memory = f"{self.device.memory / GB:.0f}"
        place = f"{'an' if memory[0] == '8' else 'a'} {memory} GB device ({self.device.name})"
        if self.ranks > 1:
            place = f"each of {self.ranks} {place.partition(' ')[2].replace('device', 'devices')}"
        if self.fits:
            return f"fits {place} with {size(self.spare)} to spare"
        return f"does not fit {place}: {size(-self.spare)} are missing"


@dataclass(frozen=True, slots=True)
class Plan:
    """All roles of a run."""

    name: str
    shape: ModelShape
    roles: list[RolePlan]
    sizes: Sizes
    time: StepTime
    assumed: Assumptions
    workers: int
    async_level: int
    notes: list[str] = field(default_factory=list)

    @property
    def bottleneck(self) -> str:
        return self.time.bottleneck(self.workers)

    @property
    def step_seconds(self) -> float:
        return self.time.seconds(self.workers, self.async_level)


def size(count: float) -> str:
    """Bytes, for a reader."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= unit:
            value = count / unit
            return f"{value:.3g} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{count:.0f} bytes"


def make_plan(
    config: RunConfig, shape: ModelShape, passes: PassBytes, file: int, assumed: Assumptions, notes: list[str]
) -> Plan:
    """The plan, from values alone."""
    sizes = sizes_of(config, shape, file, assumed)
    workers = config.workers.count
    trainer = trainer_memory(config, shape, passes, assumed.trainer)
    worker, validator = worker_memory(config, shape, passes), validator_memory(config, shape, passes)
    evaluator = evaluator_memory(config, shape, passes)
    beside = worker.total - worker.device["KV cache"]
    slots = slots_that_fit(config, shape, assumed, beside)
    time = step_time(config, shape, assumed, sizes, slots=slots)
    on = assumed.worker, assumed.reserve
    roles = [
        RolePlan(
            "trainer",
            trainer,
            trainer_traffic(config, shape, sizes),
            assumed.trainer,
            assumed.reserve,
            _activations(config, passes),
            ranks=config.train.ranks,
        ),
        RolePlan(
            "worker",
            worker,
            worker_traffic(sizes, workers),
            *on,
            _slots(config, shape, assumed, beside, config.workers.tensor_parallel),
            ranks=config.workers.tensor_parallel,
        ),
        RolePlan(
            "validator", validator, validator_traffic(config, sizes), *on, _states(config, shape, passes, assumed)
        ),
        RolePlan(
            "evaluator",
            evaluator,
            NO_TRAFFIC,
            *on,
            _slots(config, shape, assumed, evaluator.total - evaluator.device["KV cache"]),
        ),
        RolePlan("origin", traffic=origin_traffic(config, sizes)),
        RolePlan("relay", traffic=relay_traffic(config, sizes, workers + 1)),
        RolePlan("coordinator", traffic=coordinator_traffic(config, sizes)),
    ]
    return Plan(config.name, shape, roles, sizes, time, assumed, workers, config.async_level, notes)


def _activations(config: RunConfig, passes: PassBytes) -> tuple[str, ...]:
    """What the other ways to keep activations would take."""
    train = config.train
    ways = {
        "stored": (passes.stored, not train.activation_checkpointing),
        "activation_checkpointing": (
            passes.recomputed,
            train.activation_checkpointing and not train.offload_activations,
        ),
        "offload_activations too": (passes.recomputed - passes.block_inputs, train.offload_activations),
    }
    others = ", ".join(f"{name} {size(count)}" for name, (count, chosen) in ways.items() if not chosen)
    return (f"activations otherwise: {others}",)


def _slots(
    config: RunConfig, shape: ModelShape, assumed: Assumptions, beside: int, devices: int = 1
) -> tuple[str, ...]:
    """What workers.max_batch would fit, where the config's does not."""
    one = kv_bytes(config, shape, worker_dtype(config), devices)
    fit = (assumed.worker.memory - assumed.reserve - beside) // one
    if fit >= config.workers.max_batch:
        return ()
    each = " of each" * (devices > 1)
    if fit < 1:
        return (f"not even one sequence of {config.max_len:,} tokens fits, which takes {size(one)}{each}",)
    return (f"workers.max_batch = {fit} would fit: a sequence of {config.max_len:,} tokens takes {size(one)}{each}",)


def _states(config: RunConfig, shape: ModelShape, passes: PassBytes, assumed: Assumptions) -> tuple[str, ...]:
    """What vLLM takes beside the validator's policy where `auto` means it: on a CUDA device where it is installed."""
    if config.audit.engine != "auto" or config.train.lora is not None or assumed.worker.is_host:
        return ()
    more = states_memory(config, shape, passes)
    left = assumed.worker.memory - assumed.reserve - validator_memory(config, shape, passes).total
    if more <= left:
        return (f"vLLM for states, where it is installed, takes {size(more)} of them",)
    if left < 0:
        return ()
    return (f"vLLM for states would take {size(more)}: torch computes them",)


def plan_run(config: RunConfig, assumed: Assumptions) -> Plan:
    """The plan of a run whose model need not be here."""
    found = find_config(config)
    outlined = partial(policy_on_meta, found.config)
    shape = measure_shape(outlined(config.model.dtype), config.train.lora)
    notes = [found.note] * bool(found.note)
    if config.max_len > shape.max_positions:
        notes.append(
            f"prompt and answer may take {config.max_len:,} tokens, the model handles {shape.max_positions:,}: lower "
            "sampling.max_prompt_tokens or sampling.max_new_tokens"
        )
    file = file_bytes(config, shape, assumed.prompt_tokens, assumed.answer_tokens)
    return make_plan(
        config, shape, measure_passes(config, outlined, assumed.trainer, assumed.worker), file, assumed, notes
    )
