"""How well a trainer uses its devices: tokens per second of each, and the share of its peak FLOP/s (MFU)."""

from typing import Any

from shoal.config import RunConfig
from shoal.devices import hardware
from shoal.train.learner import Learner

# Dense bfloat16 TFLOP/s without sparsity, from the makers' data sheets; the first name that a device's name contains.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "A10": 125.0,
    "4090": 165.0,
    "MI300X": 1307.0,
}


def utilisation(learner: Learner, config: RunConfig, tokens: int, seconds: float) -> dict[str, float]:
    """Metrics of one step, in which `tokens` were computed forward and backward on all devices.

    A token takes 6 FLOP per parameter that multiplies it: all but an input embedding that is not the head as well.
    Attention among tokens is not counted, nor what is computed twice to save memory.
    """
    devices = learner.world.size
    found = {
        "tokens_per_s_per_device": tokens / seconds / devices,
        "state_bytes": float(sum(learner.state_bytes().values())),
    }
    if peak := config.train.device_tflops or _known(hardware(learner.world.device)):
        found["mfu"] = 6 * _multiplied(learner) * tokens / seconds / devices / (peak * 1e12)
    return found


def _known(name: str) -> float:
    return next((tflops for part, tflops in PEAK_TFLOPS.items() if part in name), 0.0)


def _multiplied(learner: Learner) -> int:
    model: Any = learner.policy.model
    embedding = model.get_input_embeddings().weight
    tied = embedding is model.get_output_embeddings().weight
    numbers = sum(p.numel() for p in model.parameters())
    return int(numbers - (0 if tied else embedding.numel()))
