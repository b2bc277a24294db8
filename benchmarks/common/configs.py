"""Configs of the checkout and their base models; most benchmarks are sized after the laptop run."""

from pathlib import Path

from benchmarks.common.progress import Progress
from shoal.config import RunConfig
from shoal.models.base import base_model_dir, ensure_base_model
from shoal.studies.configs import changed, checkout_config, laptop_config

__all__ = ["base_model", "changed", "checkout_config", "hardly_trained", "laptop_config"]


def hardly_trained(config: RunConfig) -> RunConfig:
    """The same with a base model that is made in seconds and right in part only: it has something to learn from."""
    tasks = [task.model_dump(mode="json", exclude_none=True) | {"binary": False} for task in config.tasks]
    return changed(config, {"model.tiny.warm_steps": 20, "tasks": tasks})


def base_model(config: RunConfig, progress: Progress) -> Path:
    """The directory of a config's base model; built first if it is not in the cache."""
    if not base_model_dir(config).is_dir():
        progress.stage(f"building the base model {config.model.source}, once")
    with progress.aside() as console:
        return ensure_base_model(config, console)
