"""Devices: the only module that knows which devices there are, which one this process uses and what it computes with.

A run's config says what it wants ("auto", "cpu", "cuda" or "mps"); what that means is decided on the machine that
computes, so that a run never names a device that somebody else does not have.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.config import DeviceName
from shoal.errors import DeviceError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CPU = torch.device("cpu")
META = torch.device("meta")  # tensors with shapes and without numbers


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to compute on, and this process's number among those that torchrun started here."""

    cuda: int = 0
    """CUDA devices."""
    mps: bool = False
    rank: int = 0
    ranks: int = 1


def this_machine() -> Machine:
    return Machine(
        cuda=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        mps=torch.backends.mps.is_available(),
        rank=int(os.environ.get("LOCAL_RANK", 0)),
        ranks=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    )


def resolve(wanted: DeviceName, machine: Machine | None = None, what: str = "device") -> torch.device:
    """The device that this process computes on; a DeviceError that says what there is where the wanted one is missing.

    "auto" is the first of cuda, mps and cpu that is here. Under torchrun each rank has a CUDA device of its own, by its
    number on this machine; ranks never share one. `what` is what asked, as in "train.device" or "--device".
    """
    here = machine or this_machine()
    kind = wanted
    if wanted == "auto":
        kind = "cuda" if here.cuda else "mps" if here.mps and here.ranks == 1 else "cpu"
    if kind == "cuda" and not here.cuda:
        raise _absent(what, "cuda", _why_no_cuda(), here)
    if kind == "cuda" and here.rank >= here.cuda:
        raise DeviceError(
            f"{what} = {wanted!r}: torchrun started {here.ranks} processes on this machine, which has {here.cuda} CUDA "
            f"device{'s' * (here.cuda > 1)}; start torchrun with --nproc-per-node {here.cuda}, or set {what} to 'cpu'"
        )
    if kind == "mps" and not here.mps:
        raise _absent(what, "mps", "it is the GPU of an Apple computer", here)
    if kind == "mps" and here.ranks > 1:
        raise DeviceError(
            f"{what} = 'mps': torchrun started {here.ranks} processes, and PyTorch has no collectives for MPS; start "
            f"one process, or set {what} to 'cpu'"
        )
    return torch.device("cuda", here.rank) if kind == "cuda" else torch.device(kind)


def set_up(wanted: DeviceName, threads: int, what: str = "device") -> torch.device:
    """Resolves this process's device and makes it current, and limits PyTorch to `threads` CPU threads.

    Float32 is computed as such, whatever the environment says: NVIDIA's containers turn TF32 on, in which a judge would
    be a thousandth off.
    """
    device = resolve(wanted, what=what)
    torch.set_float32_matmul_precision("highest")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # what a library creates on "cuda" is then created there
    set_threads(threads)
    return device


def set_threads(count: int) -> None:
    """Limits PyTorch to `count` CPU threads in this process."""
    torch.set_num_threads(count)


def training_dtype(device: torch.device) -> torch.dtype:
    """What a trainer's forward and backward pass compute in: bfloat16 on a GPU that has it, float32 elsewhere.

    CPUs and older GPUs emulate bfloat16, which takes longer than float32.
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def is_cuda(device: torch.device) -> bool:
    """Whether it is a GPU that Triton compiles for and vLLM runs on."""
    return device.type == "cuda"


def bound_memory(device: torch.device, share: float) -> None:
    """Lets this process take so much of a CUDA device's memory, as a share of all of it."""
    torch.cuda.set_per_process_memory_fraction(share, device)


def sums_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64, and float32 on MPS, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_flash_attention(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Whether PyTorch's flash attention for stretches of any length takes such numbers and heads on this device.

    It is there in PyTorch 2.13 for NVIDIA's GPUs from Ampere on, 16-bit numbers and heads of up to 256.
    """
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    if device.type != "cuda" or torch.version.hip is not None or release < (2, 13):
        return False
    fits = dtype in (torch.bfloat16, torch.float16) and head <= 256
    return fits and torch.cuda.get_device_capability(device) >= (8, 0)


def can_pin() -> bool:
    """Whether memory of the host can be pinned here, which lets a device copy it while the host goes on."""
    return torch.cuda.is_available()


def collectives(device: torch.device) -> str:
    """The `backend` of init_process_group for ranks that compute on this device.

    Ranks on CUDA devices have both: NCCL for tensors there, and gloo for what stays on the host, such as the tokens
    that rank 0 hands out and asynchronous checkpoints.
    """
    backends = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
    if device.type not in backends:
        raise DeviceError(f"device {device}: PyTorch has no collectives for it; train with one process, or on cpu")
    return backends[device.type]


def hardware(device: torch.device) -> str:
    """What a device is called, as far as results depend on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.machine()}-mps"
    # The instruction set decides in which order a CPU adds up; the model of the CPU does not.
    return f"{platform.machine()}-cpu-{torch.backends.cpu.get_cpu_capability()}"


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU as PyTorch sees it."""

    name: str
    memory: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What PyTorch was built for, and the GPUs that it can use."""

    version: str
    cuda: str | None
    hip: str | None
    mps: bool
    gpus: tuple[CudaDevice, ...]


def torch_build() -> TorchBuild:
    """PyTorch as it is on this machine; a GPU that it cannot use is not among its GPUs."""
    found = [torch.cuda.get_device_properties(number) for number in range(this_machine().cuda)]
    gpus = tuple(CudaDevice(gpu.name, gpu.total_memory, (gpu.major, gpu.minor)) for gpu in found)
    build = torch.version
    return TorchBuild(torch.__version__, build.cuda, build.hip, torch.backends.mps.is_available(), gpus)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device's memory; None where the device does not tell."""

    total: int | None
    """Of the device, or of the machine."""
    used: int | None
    """By tensors of this process; on a CPU, by the process."""
    peak: int | None
    """The most that was used so far."""


def memory(device: torch.device) -> Memory:
    """Memory of a device now."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return Memory(total, torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return Memory(torch.mps.recommended_max_memory(), torch.mps.current_allocated_memory(), None)
    return Memory(_physical_memory(), *_resident_memory())


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a CUDA device: all of it, and what no process holds."""

    total: int
    free: int


def least_room(devices: int) -> Room:
    """The first so many CUDA devices of this process have this much room at least, each of them."""
    if devices > (here := this_machine().cuda):
        raise DeviceError(
            f"{devices} CUDA devices are asked for, and this process sees {here}; ask for fewer (--tensor-parallel, "
            "workers.tensor_parallel), or see what CUDA_VISIBLE_DEVICES hides"
        )
    found = [torch.cuda.mem_get_info(number) for number in range(devices)]
    return Room(total=min(total for _, total in found), free=min(free for free, _ in found))


def to_device(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of the host on a device; a CUDA device copies them while the host goes on."""
    pin = device.type == "cuda" and can_pin()
    return torch.tensor(numbers, dtype=dtype, device=CPU, pin_memory=pin).to(device, non_blocking=pin)


def to_numpy(x: Tensor) -> npt.NDArray[Any]:
    """A tensor's values on the host; the only way there from a device. A tensor on the CPU shares its memory."""
    return np.asarray(x.detach().to(CPU).numpy())


def _absent(what: str, kind: str, why: str, here: Machine) -> DeviceError:
    others = [f"{here.cuda} x cuda"] * bool(here.cuda) + ["mps"] * here.mps + ["cpu"]
    return DeviceError(
        f"{what} = {kind!r}: this machine has no such device ({why}); it has {', '.join(others)}; "
        f"use one of these, or 'auto'"
    )


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} was built without CUDA"
    return "PyTorch was built with CUDA but sees no GPU: no driver, or CUDA_VISIBLE_DEVICES hides it"


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows; a system without the name
        return None


def _resident_memory() -> tuple[int | None, int | None]:
    """Resident bytes of this process now and at most, from Linux's /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None, None
    fields = (line.partition(":") for line in lines)
    sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in fields if rest.endswith("kB")}
    return sizes.get("VmRSS"), sizes.get("VmHWM")
