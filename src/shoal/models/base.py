"""The base model of a run as a cached directory: built (tiny), expanded (smollm2) or a given path."""

import hashlib
import json
import shutil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shoal.config import RunConfig
from shoal.errors import ModelError
from shoal.files import cache_dir, locked, remove_staging, whole_directory

# Part of the cache key: raise it when the way the tiny model is built changes.
TINY_RECIPE = 2
# What a model directory is made of, besides weights; other files beside it are left alone.
MODEL_FILES = (".json", ".jinja", ".txt", ".model")
# Longest wait for another process that makes the same model.
BUILD_S = 1800.0


def base_model_dir(config: RunConfig) -> Path:
    """Where the base model is, or will be once it is made."""
    match config.model.source:
        case "tiny":
            return cache_dir() / "models" / f"tiny-{_tiny_key(config)}"
        case "smollm2":
            return cache_dir() / "models" / "smollm2-135m-instruct"
        case path:
            return Path(path)


def ensure_base_model(config: RunConfig, console: Console, *, rebuild: bool = False) -> Path:
    """The base model's directory, which can be loaded; made first, with progress shown, if need be.

    One process makes a model; others wait for it. What was there stays until the new one is whole.
    """
    directory = base_model_dir(config)
    if config.model.source not in ("tiny", "smollm2"):
        if not config.model.source or not directory.is_dir():
            raise ModelError(
                f'model.source = "{config.model.source}": no such directory; give "tiny", "smollm2" or a directory '
                "saved by save_pretrained"
            )
        _check(directory, config)
        return directory
    if not rebuild and _is_good(directory, config, console):
        return directory
    taken = f"model {directory}: another process is making it and did not finish within {BUILD_S:.0f} s; try again"
    with locked(cache_dir() / "locks" / directory.name, taken, wait_s=BUILD_S):
        remove_staging(directory.parent, f"{directory.name}-")
        if not rebuild and _is_good(directory, config, console):
            return directory
        with whole_directory(directory, durable=True, replace=True) as staging:
            if config.model.source == "tiny":
                _build_tiny(config, staging, console)
            else:
                _expand_smollm2(staging, console)
    return directory


def write_base_version(base: Path, folder: Path, dtype: str) -> None:
    """Version 0: the base model, with its weights under the names, in the dtype and in the files of later versions.

    So workers sample from what the trainer begins with, to the bit, and version 1 can be sent as a delta.
    """
    from shoal.models.load import load
    from shoal.models.weights import is_weights, write_weights

    for file in base.iterdir():
        if file.is_file() and file.suffix in MODEL_FILES and not is_weights(file.name):
            shutil.copy2(file, folder)
    write_weights(folder, load(base, dtype).weights())


def _check(directory: Path, config: RunConfig) -> None:
    from shoal.models.load import load

    load(directory, config.model.dtype)


def _is_good(directory: Path, config: RunConfig, console: Console) -> bool:
    """Whether a model that was made before is there and still whole."""
    if not directory.exists():
        return False
    try:
        _check(directory, config)
    except ModelError as error:
        console.print(f"{error}; making it again", markup=False, soft_wrap=True)
        return False
    return True


def _expand_smollm2(staging: Path, console: Console) -> None:
    from shoal.models.smollm2 import expand

    with console.status("expanding SmolLM2-135M-Instruct (once, about half a minute)") as status:
        expand(staging, status.update if console.is_terminal else console.print)


def _tiny_key(config: RunConfig) -> str:
    tasks = config.model.tiny.warm_tasks or config.tasks
    spec = [
        TINY_RECIPE,
        config.seed,
        config.model.tiny.model_dump(mode="json"),
        [t.model_dump(mode="json") for t in tasks],
    ]
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def _build_tiny(config: RunConfig, staging: Path, console: Console) -> None:
    from shoal.models.tiny import build_tiny
    from shoal.tasks.build import build_source

    tasks = build_source(config.model.tiny.warm_tasks or config.tasks)
    columns = (
        TextColumn("warm start"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} loss {task.fields[loss]:.3f}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("warm start", total=config.model.tiny.warm_steps, loss=float("nan"))

        def progress(step: int, steps: int, loss: float) -> None:
            bar.update(task, completed=step, total=steps, loss=loss)
            if not console.is_terminal and step % 50 == 0:
                console.print(f"warm start {step}/{steps} loss {loss:.3f}")

        build_tiny(staging, config.model.tiny, tasks, config.seed, progress)
