"""How a worker keeps the limits of the machine that it was lent: memory and GPU memory, with an error where they are
too small for the run.

Bandwidth is kept by `bandwidth`, the disk by `shardcast/fetch/room.py`. What starts a worker may watch it besides
(`lend/process_tree.py`): this process can bound its own memory, not that of the processes that it starts.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from shoal.config import RunConfig
from shoal.devices import DTYPES, bound_memory, is_cuda, memory
from shoal.errors import LimitError
from shoal.limits import show_size
from shoal.models.cache_size import cache_bytes

OUT_OF_MEMORY = ("allocate memory", "out of memory", "bad_alloc", "can't start new thread")
# What generation takes beside weights and cache: activations, logits and files that are scored.
WORKING_ROOM = 1.1


def own_memory() -> tuple[int, int]:
    """Bytes of this process's own memory: those in use, and those it has asked the system for."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in fields if rest.endswith("kB")}
    return sizes["RssAnon"] + sizes["RssShmem"], sizes["VmData"]


@contextmanager
def memory_bound(limit: int | None) -> Iterator[None]:
    """Bounds the memory of this process: an allocation beyond it fails, and is a LimitError that says what to do.

    The bound is on what is asked for from now on: what the program had asked for before, and does not use, is not
    counted. Without Linux's accounts nothing is bound here, and the one who watches the process ends it instead.
    """
    if limit is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        in_use, asked_for = own_memory()
        resource.setrlimit(resource.RLIMIT_DATA, (asked_for + max(0, limit - in_use), before[1]))
    except (OSError, KeyError, ValueError):
        yield
        return
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(text in str(error).lower() for text in OUT_OF_MEMORY):
            raise LimitError(
                f"--memory {show_size(limit)}: the worker needed more, and was refused it; raise it, or lower --batch"
            ) from error
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def check_model_fits(folder: Path, config: RunConfig, limit: int) -> None:
    """A LimitError before a model is loaded that the limit has no room for, with its cache at its longest answers."""
    program, _ = own_memory()
    dtype = config.workers.dtype or config.model.dtype
    width = DTYPES[dtype].itemsize
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    weights = weights * width // DTYPES[config.model.dtype].itemsize
    batch = config.workers.max_batch
    one = cache_bytes(folder / "config.json", config.max_len, width)
    needed = program + int(WORKING_ROOM * (weights + batch * one))
    if needed <= limit:
        return
    fitting = int((limit - program) / WORKING_ROOM - weights) // one if one else 0
    smaller = f", or give --batch {fitting}" if 0 < fitting < batch else ""
    raise LimitError(
        f"--memory {show_size(limit)}: this run needs {show_size(needed)} here ({show_size(weights)} of weights in "
        f"{dtype}, {show_size(batch * one)} of cache for {batch} answers at once, {show_size(program)} of the program, "
        f"and a tenth more to work in); raise it{smaller}"
    )


def limit_gpu_memory(device: torch.device, limit: int | None) -> None:
    """Bounds what this process takes of a CUDA device's memory; other devices have no such bound."""
    if limit is None:
        return
    if not is_cuda(device):
        raise LimitError(f"--gpu-memory {show_size(limit)}: this worker computes on {device}; leave it out")
    bound_memory(device, gpu_share(limit, memory(device).total or limit))


def gpu_share(limit: int, total: int) -> float:
    """The limit as a share of a device's memory."""
    return min(1.0, limit / total)
