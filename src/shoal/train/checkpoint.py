"""Checkpoints: all that the trainer needs to go on after a SIGKILL, as safetensors and JSON, complete or not there.

The state after step k is checkpoint k + 1. Random choices of the trainer follow from seed and step, so there is no
generator state to keep; the learning rate follows from the number of updates.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.errors import ModelError
from shoal.files import remove_staging, sha256_file, whole_directory
from shoal.models.load import WEIGHTS, Policy, trainable

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


def save_checkpoint(
    path: Path, policy: Policy, optimizer: torch.optim.Optimizer, progress: Progress, keep: int
) -> None:
    """Writes a checkpoint and removes all but the newest `keep`."""
    remove_staging(path)
    target = _folder(path, progress.version)
    shutil.rmtree(target, ignore_errors=True)
    with whole_directory(target, durable=True) as staging:
        save_file({name: t.contiguous() for name, t in policy.weights().items()}, staging / WEIGHTS)
        save_file(_moments(policy, optimizer), staging / OPTIMIZER)
        state = {
            "version": progress.version,
            "bad_steps": progress.bad_steps,
            "used": progress.used,
            "sha256": {name: sha256_file(staging / name) for name in (WEIGHTS, OPTIMIZER)},
        }
        (staging / STATE).write_text(json.dumps(state))
    for old in _found(path)[:-keep]:
        shutil.rmtree(_folder(path, old), ignore_errors=True)


def load_checkpoint(path: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> tuple[Progress | None, list[str]]:
    """Restores the newest whole checkpoint; also says which ones were damaged and passed over."""
    damaged: list[str] = []
    for version in reversed(_found(path)):
        folder = _folder(path, version)
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_text())
            for name, digest in state["sha256"].items():
                if sha256_file(folder / name) != digest:
                    raise ValueError(f"{name} does not match its hash")
            weights, moments = load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
            used = {int(k): {int(s): int(v) for s, v in made.items()} for k, made in state["used"].items()}
            progress = Progress(int(state["version"]), int(state["bad_steps"]), used)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            damaged.append(f"checkpoint {folder.name}: damaged ({error}); passed over")
            continue
        for newer in _found(path):
            if newer > version:
                shutil.rmtree(_folder(path, newer), ignore_errors=True)
        policy.set_weights(weights, str(folder))
        _set_moments(policy, optimizer, moments, folder)
        return progress, damaged
    if damaged:
        raise ModelError(
            f"checkpoints in {path}: none can be read: {'; '.join(damaged)}; restore one, or delete the directory to "
            "train from the base model again"
        )
    return None, []


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


def _found(path: Path) -> list[int]:
    return sorted(int(f.name[5:]) for f in path.glob("step-[0-9]*") if f.name[5:].isdigit())


def _folder(path: Path, version: int) -> Path:
    return path / f"step-{version:06d}"
