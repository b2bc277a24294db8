"""Atomic checkpoints: all that the trainer needs to resume after SIGKILL, as safetensors and JSON.

The state after step k is checkpoint k + 1. Random choices of the trainer follow from seed and step, so there is no
generator state to keep; the learning rate follows from the number of updates.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.errors import ModelError
from shoal.files import numbered, parse_json, read_regular, remove_staging, sha256_file, whole_directory
from shoal.models.load import WEIGHTS, Policy, trainable
from shoal.tasks.difficulty import Rates, rates_from_tree, rates_to_tree

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands: steps done, bad steps in a row, and what each step was trained on.

    `used` maps step to submission to the version it was made with: the whole lineage of the current weights.
    """

    version: int
    bad_steps: int
    used: dict[int, dict[int, int]]
    rates: Rates | None = field(default=None, repr=False)
    """What the sampler knows of the tasks, where there is one."""


def save_checkpoint(
    path: Path, policy: Policy, optimizer: torch.optim.Optimizer, progress: Progress, keep: int
) -> None:
    """Writes a checkpoint and removes all but the newest `keep`."""
    remove_staging(path)
    target = _folder(path, progress.version)
    with whole_directory(target, durable=True, replace=True) as staging:
        save_file({name: t.contiguous() for name, t in policy.weights().items()}, staging / WEIGHTS)
        save_file(_moments(policy, optimizer), staging / OPTIMIZER)
        state = {
            "version": progress.version,
            "bad_steps": progress.bad_steps,
            "used": progress.used,
            "rates": None if progress.rates is None else rates_to_tree(progress.rates),
            "sha256": {name: sha256_file(staging / name) for name in (WEIGHTS, OPTIMIZER)},
        }
        (staging / STATE).write_text(json.dumps(state))
    ours = [found for found in _found(path) if found <= progress.version and _is_ours(path, found)]
    for old in ours[:-keep]:
        shutil.rmtree(_folder(path, old), ignore_errors=True)


def load_checkpoint(path: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> tuple[Progress | None, list[str]]:
    """Restores the newest whole checkpoint; also says which ones were damaged and passed over."""
    damaged: list[str] = []
    lost = False  # a folder with nothing of ours in it never was a checkpoint
    for version in reversed(_found(path)):
        folder = _folder(path, version)
        try:
            state = _state(folder, version)
            for name, digest in state["sha256"].items():
                if sha256_file(folder / name) != digest:
                    raise ValueError(f"{name} does not match its hash")
            weights, moments = load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
            used = {int(k): {int(s): int(v) for s, v in made.items()} for k, made in state["used"].items()}
            rates = rates_from_tree(state["rates"]) if state.get("rates") is not None else None
            progress = Progress(int(state["version"]), int(state["bad_steps"]), used, rates)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            damaged.append(f"checkpoint {folder.name}: damaged ({error}); passed over")
            lost = lost or any((folder / name).exists() for name in (STATE, WEIGHTS, OPTIMIZER))
            continue
        policy.set_weights(weights, str(folder))
        _set_moments(policy, optimizer, moments, folder)
        return progress, damaged
    if lost:
        raise ModelError(
            f"checkpoints in {path}: none can be read: {'; '.join(damaged)}; restore one, or delete the directory to "
            "train from the base model again"
        )
    return None, damaged


def _moments(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    moments = {}
    for name, parameter in trainable(policy.model):
        for key, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}:{key}"] = value
    return moments


def _set_moments(policy: Policy, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor], folder: Path) -> None:
    for name, parameter in trainable(policy.model):
        state = {key: moments[f"{name}:{key}"] for key in MOMENTS if f"{name}:{key}" in moments}
        if state and len(state) != len(MOMENTS):
            raise ModelError(f"{folder}: optimizer state of {name} lacks {sorted(set(MOMENTS) - state.keys())}")
        if state:
            optimizer.state[parameter] = state


def _state(folder: Path, version: int) -> dict[str, Any]:
    state = parse_json(read_regular(folder / STATE, max_bytes=1 << 30))
    if not isinstance(state, dict) or state["version"] != version:
        raise ValueError(f"its {STATE} is not that of version {version}")
    return state


def _is_ours(path: Path, version: int) -> bool:
    """Whether this is a checkpoint by its state: only those are counted and cleared away."""
    try:
        return bool(_state(_folder(path, version), version))
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def _found(path: Path) -> list[int]:
    return sorted(n for folder in path.glob("step-*") if (n := numbered(folder.name, "step-")) is not None)


def _folder(path: Path, version: int) -> Path:
    return path / f"step-{version:06d}"
