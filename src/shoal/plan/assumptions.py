"""What a plan takes for granted: named devices, links, and how answers will turn out. Every one of them is printed.

Speeds of devices are their makers' figures for dense bfloat16 matrices and for memory; what a program reaches of them
is an assumption of its own.
"""

from dataclasses import dataclass, replace
from typing import Any

from shoal.config import RunConfig
from shoal.errors import ConfigError
from shoal.train.flops import PEAK_TFLOPS

GB = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one machine's processor and memory."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Per second, at its peak."""
    bytes_per_s: float
    """Between memory and processor, at its peak."""

    @property
    def is_host(self) -> bool:
        """Whether what would be kept in host memory beside a device takes the device's own."""
        return self.name == "cpu"


DEVICES = {
    device.name: device
    for device in (
        Device("b200", 180 * GB, PEAK_TFLOPS["B200"] * 1e12, 7700e9),
        Device("h200", 141 * GB, PEAK_TFLOPS["H200"] * 1e12, 4800e9),
        Device("h100", 80 * GB, PEAK_TFLOPS["H100"] * 1e12, 3350e9),
        Device("a100", 80 * GB, PEAK_TFLOPS["A100"] * 1e12, 2039e9),
        Device("l40s", 48 * GB, PEAK_TFLOPS["L40S"] * 1e12, 864e9),
        Device("4090", 24 * GB, PEAK_TFLOPS["4090"] * 1e12, 1008e9),
        Device("cpu", 16 * GB, 0.1e12, 20e9),
    )
}


def device_named(name: str, flag: str) -> Device:
    if name not in DEVICES:
        raise ConfigError(f"{flag} {name}: unknown; give one of {', '.join(DEVICES)}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All that a plan needs and neither config nor model tells."""

    trainer: Device
    worker: Device
    """Of workers, validator and evaluator."""
    prompt_tokens: float
    answer_tokens: float
    signal: float
    """Share of groups whose rewards differ."""
    delta_share: float
    """Bytes of a delta, as a share of the full version."""
    mbit: float = 1000.0
    """Link of every machine, megabits per second in each direction."""
    train_use: float = 0.4
    """Share of its peak FLOP/s that a device reaches in training."""
    prefill_use: float = 0.5
    """The same where whole rows are computed without gradients."""
    decode_use: float = 0.6
    """Share of its peak memory bandwidth that a device reaches in decoding."""
    reserve: int = GB
    """Bytes of a device that are nobody's: the driver's, and what falls between allocations."""

    @property
    def bytes_per_s(self) -> float:
        return self.mbit * 1e6 / 8

    def sentences(self) -> list[str]:
        """The assumptions, for a reader."""
        return [
            *(_device(role, device) for role, device in self._devices()),
            f"{self.train_use:.0%} of peak FLOP/s in training, {self.prefill_use:.0%} in prefill, "
            f"{self.decode_use:.0%} of memory bandwidth in decoding",
            f"links of {self.mbit:,.0f} Mbit/s",
            f"prompts of {self.prompt_tokens:,.0f} tokens and answers of {self.answer_tokens:,.0f} on average, and as "
            "long as the config allows where memory is counted",
            f"{self.signal:.0%} of groups have signal",
            f"a delta is {self.delta_share:.1%} of a full version" if self.delta_share < 1 else "versions travel whole",
            f"{self.reserve / GB:g} GB of each device are not available to tensors",
        ]

    def _devices(self) -> list[tuple[str, Device]]:
        if self.trainer == self.worker:
            return [("all roles", self.trainer)]
        return [("trainer", self.trainer), ("workers, validator and evaluator", self.worker)]


def _device(role: str, device: Device) -> str:
    return (
        f"{role}: {device.name}, {device.memory / GB:.0f} GB, {device.flops / 1e12:,.3g} TFLOP/s, "
        f"{device.bytes_per_s / 1e9:,.0f} GB/s"
    )


def assumptions(
    config: RunConfig, *, gpu: str | None = None, worker_gpu: str | None = None, **given: float | None
) -> Assumptions:
    """What is assumed of a run; whatever is not given follows from its config.

    A bfloat16 run is for GPUs, a float32 run for processors.
    """
    sampling, targets = config.sampling, config.length.targets
    is_bfloat16 = config.model.dtype == "bfloat16"
    trainer = device_named(gpu or ("h100" if is_bfloat16 else "cpu"), "--gpu")
    usual = Assumptions(
        trainer=trainer,
        worker=device_named(worker_gpu, "--worker-gpu") if worker_gpu else trainer,
        prompt_tokens=sampling.max_prompt_tokens / 2,
        answer_tokens=sum(targets) / len(targets) if targets else sampling.max_new_tokens / 2,
        signal=0.5 if config.train.online_filter else 1.0,
        # docs/deltas.md: 1/128 to 1/49 of SmolLM2 at learning rates up to 1e-6. Only bfloat16 has deltas.
        delta_share=0.02 if is_bfloat16 else 1.0,
    )
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(usual, **changed)
