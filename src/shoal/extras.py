"""Optional dependencies: a worker needs none of them, and anything else says which extra to install."""

import importlib.util

from shoal.errors import MissingExtraError, ShoalError

# The modules that each extra of pyproject.toml installs; a test compares the two.
EXTRAS: dict[str, tuple[str, ...]] = {
    "relay": ("aiohttp",),
    "s3": ("obstore",),
    "coordinator": ("aiohttp", "fastapi", "httptools", "obstore", "psycopg", "sqlalchemy", "uvicorn", "uvloop"),
    "chain": ("eth_abi", "eth_account", "eth_typing", "eth_utils", "hexbytes", "requests", "vyper", "web3"),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "lmeval": ("jinja2", "yaml"),
    "datasets": ("datasets",),
    "ifeval": ("langdetect", "nltk"),
    "smollm2": ("accelerate", "gguf"),
    "verifiers": ("verifiers",),
    "openenv": ("openenv",),
    "vllm": ("triton", "vllm"),
}
NOT_EVERYWHERE = {"triton", "uvloop"}  # no Triton without a GPU, no uvloop for Windows


def require(extra: str, what: str, kind: type[ShoalError] = MissingExtraError) -> None:
    """Raises an error of this kind, which says what to install, unless all modules of the extra can be imported."""
    missing = [name for name in EXTRAS[extra] if name not in NOT_EVERYWHERE and not is_installed(name)]
    if missing:
        raise kind(f"{what}: needs {', '.join(missing)}; run: pip install 'shoal-rl[{extra}]'")


def is_installed(module: str) -> bool:
    """Whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
