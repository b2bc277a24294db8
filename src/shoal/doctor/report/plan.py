"""Which steps a report has, in their order, with a deadline each; a step's module is imported in its own process."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to run."""

    name: str
    seconds: float
    """After so long it is ended, and has failed."""
    shows: str
    """What it shows if it passes."""
    on_cpu: Mapping[str, str] = field(default_factory=dict)
    """Environment of its process where it computes on a CPU."""

    @property
    def module(self) -> str:
        return f"shoal.doctor.steps.{self.name.replace('-', '_')}"


# Triton reads it when it is imported, which PyTorch may do before a step begins.
INTERPRETED = {"TRITON_INTERPRET": "1"}
STEPS = (
    Step("sampling", 300, "tokens chosen on the device are those that numpy chooses"),
    Step("engine", 900, "a float32 judge accepts our engine's answers and proofs"),
    Step("reload", 900, "a loaded version is its files, bit for bit, and answers are its own"),
    Step("ranks", 1200, "FSDP2 ranks learn what one process learns"),
    Step("memory", 900, "a training step takes what shoal plan says"),
    Step("speed", 1800, "tokens per second, with proofs and without"),
    Step("noise-kernel", 900, "the Triton kernel draws numpy's noise and tokens", INTERPRETED),
    Step("vllm-v1", 1800, "a float32 judge accepts vLLM's answers and proofs, V1 runner"),
    Step("vllm-v2", 1800, "a float32 judge accepts vLLM's answers and proofs, V2 runner"),
    Step("vllm-reload", 1800, "vLLM takes new versions without a restart"),
    Step("vllm-speed", 1800, "tokens per second of vLLM, with noise and proofs and plain"),
    Step("rates", 3600, "how far this machine is off from a float32 judge"),
)
