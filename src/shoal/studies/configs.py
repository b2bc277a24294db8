"""Configs of the checkout as studies change them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shoal
from shoal.config import RunConfig
from shoal.config_io import check_config, load_config
from shoal.errors import ConfigError

ROOT = Path(shoal.__file__).parents[2]


def enter_checkout(what: str) -> None:
    """Makes the checkout the current directory: paths in its configs are relative to it."""
    if not (ROOT / "configs" / "laptop.toml").is_file():
        raise ConfigError(f"{what}: needs a checkout, to which paths in its configs are relative; clone the repository")
    os.chdir(ROOT)


def checkout_config(name: str) -> RunConfig:
    """A file in `configs/` of this checkout."""
    return load_config(ROOT / "configs" / name)


def laptop_config() -> RunConfig:
    """The laptop run without its cheaters, and with workers that are all alike."""
    return changed(checkout_config("laptop.toml"), {"cheaters": [], "workers.batches": []})


def changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """A config with some keys changed, each named by its full path (`train.lr`), and checked as a whole again."""
    tree = config.model_dump(mode="json", exclude_none=True)
    for key, value in changes.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node[part]
        node[last] = value
    return check_config(tree, "of the benchmark or study")
