"""Configs of the checkout and their base models; most benchmarks are sized after the laptop run."""

from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.common.progress import Progress
from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.models.base import base_model_dir, ensure_base_model


def laptop_config() -> RunConfig:
    """The laptop run without its cheaters, and with workers that are all alike."""
    return changed(checkout_config("laptop.toml"), {"cheaters": [], "workers.batches": []})


def checkout_config(name: str) -> RunConfig:
    """A file in `configs/` of this checkout."""
    return load_config(ROOT / "configs" / name)


def hardly_trained(config: RunConfig) -> RunConfig:
    """The same with a base model that is made in seconds and right in part only: it has something to learn from."""
    tasks = [task.model_dump(mode="json", exclude_none=True) | {"binary": False} for task in config.tasks]
    return changed(config, {"model.tiny.warm_steps": 20, "tasks": tasks})


def changed(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """A config with some keys changed, each named by its full path (`train.lr`), and checked as a whole again."""
    tree = config.model_dump(mode="json", exclude_none=True)
    for key, value in changes.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node[part]
        node[last] = value
    return check_config(tree, "of the benchmark")


def base_model(config: RunConfig, progress: Progress) -> Path:
    """The directory of a config's base model; built first if it is not in the cache."""
    if not base_model_dir(config).is_dir():
        progress.stage(f"building the base model {config.model.source}, once")
    with progress.aside() as console:
        return ensure_base_model(config, console)
