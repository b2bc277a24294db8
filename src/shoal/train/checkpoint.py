"""Atomic checkpoints: all that the trainer needs to resume after SIGKILL, as safetensors and JSON.

The state after step k is checkpoint k + 1. Each rank writes its shares of weights and moments into files of its own, in
the safetensors layout of torch.distributed.checkpoint, which reads them again for any number of ranks. Random choices
of the trainer follow from seed and step, so there is no generator state to keep; the learning rate follows from the
number of updates.
"""

import errno
import json
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shoal.devices import CPU
from shoal.errors import ModelError
from shoal.files import error_number, numbered, parse_json, read_regular, remove_staging, sha256_file, whole_directory
from shoal.models.load import check_names, trainable
from shoal.tasks.difficulty import Rates, rates_from_tree, rates_to_tree
from shoal.train.distributed import World
from shoal.train.learner import Learner
from shoal.train.optimizer import MOMENTS, local

STATE = "state.json"
WEIGHTS_KIND, OPTIMIZER_KIND = "model", "optimizer"
KEYS = (*MOMENTS, "step")
# Where torch.distributed.checkpoint looks for the place of a share in its whole tensor.
SHARDING = "DCP_SHARDING_INFO"
HASHERS = 8


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's share of weights and moments in host memory, copied at one moment: training goes on while it is written.

    `offsets` say where in the whole tensor a share begins.
    """

    tensors: dict[str, dict[str, Tensor]]
    """By the kind of file: weights, optimizer."""
    offsets: dict[str, list[int]]


def snapshot(learner: Learner) -> Snapshot:
    """Copies what a checkpoint holds of this rank's share. A share of nothing is left out."""
    world = learner.world
    weights = learner.policy.trained_weights()
    tensors: dict[str, dict[str, Tensor]] = {WEIGHTS_KIND: {}, OPTIMIZER_KIND: {}}
    offsets: dict[str, list[int]] = {}

    def keep(kind: str, name: str, tensor: Tensor) -> None:
        part = local(tensor)
        is_whole = not isinstance(tensor, DTensor)
        if part.numel() and (world.is_first or not is_whole):
            tensors[kind][name] = part.detach().to(CPU, copy=True).contiguous()
            offsets[name] = [0] * part.dim() if is_whole else _offset(tensor)

    for name, tensor in weights.items():
        keep(WEIGHTS_KIND, name, tensor)
    for name, state in _states(learner).items():
        for key, value in state.items():
            keep(OPTIMIZER_KIND, f"{name}:{key}", value)
    return Snapshot(tensors, offsets)


def save_checkpoint(path: Path, learner: Learner, progress: Progress | None, keep: int) -> None:
    """Writes a checkpoint and removes all but the newest `keep`. Every rank calls it; rank 0 knows the progress."""
    write_checkpoint(path, snapshot(learner), learner.world, progress, keep)


def write_checkpoint(path: Path, taken: Snapshot, world: World, progress: Progress | None, keep: int) -> None:
    """Writes what every rank took, each rank its own files; rank 0, which knows the progress, makes it a checkpoint.

    It may run in a thread of every rank: it exchanges messages through a group of its own.
    """
    if progress is None:
        staging = Path(world.share_text(None, background=True))
        world.texts(_written(staging, taken, world), background=True)
        return
    remove_staging(path)
    with whole_directory(_folder(path, progress.version), durable=True, replace=True) as staging:
        world.share_text(str(staging), background=True)
        files: dict[str, str] = {}
        for rank, text in enumerate(world.texts(_written(staging, taken, world), background=True)):
            said = json.loads(text)
            if "error" in said:
                raise OSError(said["errno"], f"rank {rank}: {said['error']}")
            files |= said
        state = {
            "version": progress.version,
            "bad_steps": progress.bad_steps,
            "used": progress.used,
            "rates": None if progress.rates is None else rates_to_tree(progress.rates),
            "sha256": files,
        }
        (staging / STATE).write_text(json.dumps(state))
    ours = [found for found in _found(path) if found <= progress.version and _is_ours(path, found)]
    for old in ours[:-keep]:
        shutil.rmtree(_folder(path, old), ignore_errors=True)


def _written(staging: Path, taken: Snapshot, world: World) -> str:
    """Writes this rank's files and says their hashes, or what the disk said, as JSON: nobody waits for it in vain."""
    hashes = {}
    try:
        for kind, tensors in taken.tensors.items():
            name = file_name(kind, world.rank, world.size)
            places = {tensor: {"saved_offsets": taken.offsets[tensor]} for tensor in tensors}
            save_file(tensors, staging / name, {SHARDING: json.dumps(places), "format": "pt"})
            hashes[name] = sha256_file(staging / name)
    except (OSError, SafetensorError) as error:
        return json.dumps({"error": str(error), "errno": error_number(error) or errno.EIO})
    return json.dumps(hashes)


def load_checkpoint(path: Path, learner: Learner) -> tuple[Progress | None, list[str]]:
    """Restores the newest whole checkpoint, whatever number of ranks wrote it; also says which ones were damaged and
    passed over. Every rank calls it; rank 0 decides which one is whole, and alone knows the progress."""
    world, damaged = learner.world, list[str]()
    progress = None
    if world.is_first:
        progress, damaged = _newest_whole(path)
    (version,) = world.share(torch.tensor([progress.version if progress else -1])).tolist()
    if version >= 0:
        _restore(_folder(path, version), learner)
        world.all(True)  # a rank with a slow disk is waited for here, where there is patience
    return progress, damaged


def _newest_whole(path: Path) -> tuple[Progress | None, list[str]]:
    damaged: list[str] = []
    lost = False  # a folder with nothing of ours in it never was a checkpoint
    for version in reversed(_found(path)):
        folder = _folder(path, version)
        try:
            state = _state(folder, version)
            _check_hashes(folder, state["sha256"])
            used = {int(k): {int(s): int(v) for s, v in made.items()} for k, made in state["used"].items()}
            rates = rates_from_tree(state["rates"]) if state.get("rates") is not None else None
            return Progress(int(state["version"]), int(state["bad_steps"]), used, rates), damaged
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            damaged.append(f"checkpoint {folder.name}: damaged ({error}); passed over")
            lost = lost or any(entry.suffix in (".safetensors", ".json") for entry in _entries(folder))
    if lost:
        raise ModelError(
            f"checkpoints in {path}: none can be read: {'; '.join(damaged)}; restore one, or delete the directory to "
            "train from the base model again"
        )
    return None, damaged


def _check_hashes(folder: Path, hashes: dict[str, str]) -> None:
    """Compares the files with their hashes, side by side; ValueError for one that does not match."""
    with ThreadPoolExecutor(HASHERS) as pool:
        found = pool.map(sha256_file, [folder / name for name in hashes])
        for (name, digest), own in zip(hashes.items(), found, strict=True):
            if own != digest:
                raise ValueError(f"{name} does not match its hash")


def _restore(folder: Path, learner: Learner) -> None:
    """Reads this rank's share of every tensor out of the files of however many ranks wrote them."""
    reader = HuggingFaceStorageReader(str(folder))
    found = {name: meta.size for name, meta in reader.read_metadata().state_dict_metadata.items()}
    weights = learner.policy.trained_weights()
    held = {name: size for name, size in found.items() if ":" not in name}
    check_names({name: tensor.shape for name, tensor in weights.items()}, held, str(folder))
    targets: dict[str, Tensor] = dict(weights)
    for name, parameter in trainable(learner.policy.model):
        known = [key for key in KEYS if f"{name}:{key}" in found]
        if known and len(known) != len(KEYS):
            raise ModelError(f"{folder}: optimizer state of {name} lacks {sorted(set(KEYS) - set(known))}")
        if known:
            targets |= {f"{name}:{key}": value for key, value in learner.optimizer.state_of(parameter).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no_dist is meant: every rank reads its own share, and none needs the others
        dcp.load(targets, storage_reader=reader, no_dist=True)


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


def file_name(kind: str, rank: int, ranks: int) -> str:
    """The file of one rank's share."""
    return f"{kind}-{rank + 1:05d}-of-{ranks:05d}.safetensors"


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _offset(tensor: DTensor) -> list[int]:
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(offset)


def _states(learner: Learner) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state of each parameter that has one, by its name."""
    kept = learner.optimizer.state
    return {name: kept[p] for name, p in trainable(learner.policy.model) if kept.get(p)}
