"""Checks: pure functions from facts to a verdict, each with the fix for what it finds.

"failed" is what a run here cannot do without; "warning" is what costs speed or some kinds of work. Only the first
makes the command fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shoal.crypto.signed_request import WINDOW_S
from shoal.doctor.facts import Facts, Torch
from shoal.generate.vllm.release import RELEASE, is_known

Status = Literal["ok", "note", "warning", "failed"]
GIB = 1 << 30
MIN_PYTHON = (3, 11)
# Our own processes of `make run` take about 3 GiB together; below one nothing loads.
LITTLE_MEMORY, NO_MEMORY = 4 * GIB, GIB
LITTLE_DISK, NO_DISK = 20 * GIB, GIB
# The first architecture whose flash attention our kernels and bfloat16 use (`devices.has_flash_attention`).
AMPERE = (8, 0)
# Requests are refused when clocks differ by more than this; a drifting clock gets there.
CLOCK_WARNING_S = WINDOW_S / 4


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict."""

    name: str
    status: Status
    found: str
    fix: str = ""


def check_all(facts: Facts) -> list[Check]:
    """Every verdict, in the order in which a person would look."""
    checks: tuple[Callable[[Facts], Check | None], ...] = (
        check_python,
        check_memory,
        check_disk,
        check_torch,
        check_gpu,
        check_driver,
        check_vllm,
        check_engine,
        check_bubblewrap,
        check_ports,
        check_coordinator,
        check_clock,
    )
    return [found for check in checks if (found := check(facts)) is not None]


def is_fit(checks: list[Check]) -> bool:
    return all(check.status != "failed" for check in checks)


def check_python(facts: Facts) -> Check:
    found = f"Python {'.'.join(map(str, facts.python))}, Shoal {facts.shoal}, {facts.system}"
    if facts.python[:2] < MIN_PYTHON:
        return Check("machine", "failed", found, "Shoal needs Python 3.11 or newer: install it, and Shoal into it")
    return Check("machine", "ok", found)


def check_memory(facts: Facts) -> Check:
    if facts.memory is None:
        return Check("memory", "note", f"{facts.cores} cores; the system does not tell its memory")
    free = "" if facts.memory_free is None else f", {_size(facts.memory_free)} of them free"
    found = f"{facts.cores} cores, {_size(facts.memory)}{free}"
    left = facts.memory if facts.memory_free is None else facts.memory_free
    if left < NO_MEMORY:
        return Check("memory", "failed", found, "no model fits: end other programs, or use a larger machine")
    if left < LITTLE_MEMORY:
        return Check("memory", "warning", found, "enough for tiny models only; shoal plan CONFIG says what a run needs")
    return Check("memory", "ok", found)


def check_disk(facts: Facts) -> Check:
    if facts.home_error:
        found = f"runs cannot be kept: {facts.home_error}"
        return Check("disk", "failed", found, "give --home a directory of your own")
    if facts.disk_free is None:
        return Check("disk", "warning", "the directory for runs cannot be read", "give --home a directory of your own")
    found = f"{_size(facts.disk_free)} free where runs are kept"
    if facts.disk_free < NO_DISK:
        return Check("disk", "failed", found, "no version fits: free some space, or give --home another disk")
    if facts.disk_free < LITTLE_DISK:
        fix = (
            "a worker keeps two versions, 4 bytes per parameter in bfloat16: shoal plan CONFIG; or --home another disk"
        )
        return Check("disk", "warning", found, fix)
    return Check("disk", "ok", found)


def check_torch(facts: Facts) -> Check:
    if facts.torch is None:
        return Check("PyTorch", "failed", f"cannot be imported: {facts.torch_error}", "pip install --upgrade shoal-rl")
    return Check("PyTorch", "ok", f"{facts.torch.version}, {_build(facts.torch)}")


def check_gpu(facts: Facts) -> Check:
    """A GPU that is there and not used is a failure: the machine would work for hours at a CPU's speed, unnoticed."""
    torch, driver = facts.torch, facts.driver
    if torch is not None and torch.gpus:
        found = "; ".join(f"{gpu.name}, {_size(gpu.memory)}" for gpu in torch.gpus)
        old = [gpu for gpu in torch.gpus if gpu.capability < AMPERE]
        if old and torch.hip is None:
            major, minor = old[0].capability
            fix = (
                f"compute capability {major}.{minor} has no bfloat16 and no flash attention (8.0 has): it works, in "
                "float32 and with the slower kernel"
            )
            return Check("GPU", "warning", found, fix)
        return Check("GPU", "ok", found)
    if torch is not None and torch.has_apple_gpu:
        return Check("GPU", "ok", "Apple GPU (MPS); our own engine uses it, vLLM does not")
    if driver is None or not driver.gpus:
        return Check("GPU", "note", "no GPU found; everything computes on the CPU")
    found = f"{'; '.join(driver.gpus)}: the driver sees it, PyTorch does not"
    if torch is None:
        return Check("GPU", "failed", found, "fix PyTorch first")
    if torch.built_with is None:
        return Check("GPU", "failed", found, f"PyTorch {torch.version} was built without CUDA: {_index(driver.cuda)}")
    if driver.cuda is not None and torch.built_with[0] > driver.cuda[0]:
        return Check("GPU", "failed", found, "the driver is too old for this PyTorch, see the row driver")
    fix = "check CUDA_VISIBLE_DEVICES, and in a container its GPU flag (docker run --gpus all)"
    return Check("GPU", "failed", found, fix)


def check_driver(facts: Facts) -> Check | None:
    """A CUDA program runs on every driver of its major release or newer (NVIDIA's minor version compatibility)."""
    driver = facts.driver
    if driver is None:
        return None
    runs = f"runs CUDA up to {_dotted(driver.cuda)}" if driver.cuda else "its CUDA release is not known"
    found = f"NVIDIA {driver.version}, {runs}"
    if facts.torch is None or facts.torch.built_with is None or driver.cuda is None:
        return Check("driver", "ok", found)
    built = facts.torch.built_with
    if built[0] > driver.cuda[0]:
        fix = f"PyTorch was built with CUDA {_dotted(built)}: update the driver, or {_index(driver.cuda)}"
        return Check("driver", "failed", f"{found}; PyTorch needs CUDA {built[0]}", fix)
    if built > driver.cuda:
        fix = f"kernels that are compiled here may need CUDA {_dotted(built)}: update the driver if vLLM fails to start"
        return Check("driver", "warning", f"{found}; PyTorch was built with {_dotted(built)}", fix)
    return Check("driver", "ok", f"{found}; PyTorch was built with {_dotted(built)}")


def check_vllm(facts: Facts) -> Check:
    vllm, has_gpu = facts.vllm, facts.torch is not None and bool(facts.torch.gpus)
    if vllm is None:
        if not has_gpu:
            return Check("vLLM", "note", "not installed; our own engine generates")
        fix = "pip install 'shoal-rl[vllm]': on a GPU it generates several times as fast as our own engine"
        return Check("vLLM", "warning", "not installed", fix)
    found = f"{vllm.package} {vllm.version}"
    if vllm.error:
        fix = (
            "install it into an environment of its own, without torchvision, torchaudio and torchcodec of other builds"
        )
        return Check("vLLM", "failed" if has_gpu else "warning", f"{found} cannot be imported: {vllm.error}", fix)
    if not vllm.platform:
        found, fix = f"{found} finds no device", "see that nvidia-smi works here: vLLM asks the driver, not PyTorch"
        if not has_gpu:
            return Check("vLLM", "note", f"{found}; our own engine generates")
        return Check("vLLM", "failed", f"{found}, and a worker would use it on the GPU", fix)
    if has_gpu and vllm.platform == "cpu":
        fix = f"pip uninstall {vllm.package}; pip install 'shoal-rl[vllm]'"
        return Check("vLLM", "failed", f"{found} is built for CPUs, and a worker would use it on the GPU", fix)
    if not is_known(vllm.version):
        fix = f"workers know {RELEASE}: pip install '{vllm.package}=={RELEASE}.*'"
        return Check("vLLM", "failed" if has_gpu else "warning", f"{found}, on {vllm.platform}", fix)
    return Check("vLLM", "ok", f"{found}, on {vllm.platform}")


def engine_of(facts: Facts) -> Literal["vllm", "torch"]:
    """What `workers.engine = "auto"` takes here (`roles/worker_engine.py`): vLLM where it is installed and there is a
    GPU, whether it works or not; our own engine elsewhere."""
    has_gpu = facts.torch is not None and bool(facts.torch.gpus)
    return "vllm" if has_gpu and facts.vllm is not None else "torch"


def check_engine(facts: Facts) -> Check:
    where = facts.torch.device if facts.torch is not None else "nothing"
    return Check("engine", "ok", f"a worker would generate with {engine_of(facts)}, on {where}")


def check_bubblewrap(facts: Facts) -> Check:
    if not facts.bubblewrap_error:
        return Check("bubblewrap", "ok", "runs a program in a sandbox")
    fix = (
        "needed for code tasks only: apt-get install bubblewrap, or python -m shoal.tasks.isolation.install; in a "
        "container, allow user namespaces"
    )
    return Check("bubblewrap", "warning", facts.bubblewrap_error, fix)


def check_ports(facts: Facts) -> Check:
    taken = [port for port in facts.ports if port.error]
    if taken:
        found = "; ".join(f"port {port.number or 'on loopback'}: {port.error}" for port in taken)
        return Check("ports", "failed", found, "end the program that listens there, or choose another (swarm.port)")
    named = [str(port.number) for port in facts.ports if port.number]
    return Check("ports", "ok", f"{', '.join(named)} free" if named else "loopback takes servers; a worker needs none")


def check_coordinator(facts: Facts) -> Check | None:
    asked = facts.coordinator
    if asked is None:
        return None
    if asked.error:
        return Check("coordinator", "failed", asked.error, "check the URL, and that a firewall lets this machine out")
    return Check("coordinator", "ok", f"{asked.url} answers")


def check_clock(facts: Facts) -> Check:
    asked = facts.coordinator
    if asked is None or asked.error:
        return Check("clock", "note", "not compared; give --join URL to compare it with a coordinator's")
    if asked.ahead_s is None:
        return Check("clock", "note", "the coordinator does not tell its time")
    off = abs(asked.ahead_s)
    found = f"{off:.0f} s {'behind' if asked.ahead_s > 0 else 'ahead of'} the coordinator"
    if off <= 1.0:
        return Check("clock", "ok", "within a second of the coordinator's")
    fix = "set the clock (timedatectl set-ntp true)"
    if off > WINDOW_S:
        return Check("clock", "failed", found, f"every request would be refused, {WINDOW_S:.0f} s are allowed: {fix}")
    return Check("clock", "warning" if off > CLOCK_WARNING_S else "ok", found, fix if off > CLOCK_WARNING_S else "")


def _build(torch: Torch) -> str:
    if torch.built_with is not None:
        return f"built with CUDA {_dotted(torch.built_with)}"
    return f"built with ROCm {torch.hip}" if torch.hip is not None else "built without CUDA"


def _index(cuda: tuple[int, int] | None) -> str:
    """Which build of PyTorch a driver takes."""
    kind = f"cu{cuda[0]}x" if cuda is not None else "cuXYZ"
    return f"pip install torch from PyTorch's index for CUDA ({kind}, as pytorch.org says)"


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB"
