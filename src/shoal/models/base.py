"""The base model of a run as a directory: built, expanded or simply named, and cached."""

import hashlib
import json
import shutil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shoal.config import RunConfig
from shoal.errors import ModelError
from shoal.files import cache_dir, whole_directory

# Part of the cache key: raise it when the way the tiny model is built changes.
TINY_RECIPE = 2


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
    """The base model's directory; made first, with progress shown, if it does not exist yet."""
    directory = base_model_dir(config)
    made_here = config.model.source in ("tiny", "smollm2")
    if rebuild and made_here:
        shutil.rmtree(directory, ignore_errors=True)
    if directory.is_dir() and config.model.source:
        return directory
    if not made_here:
        raise ModelError(
            f'model.source = "{config.model.source}": no such directory; give "tiny", "smollm2" or a directory '
            "saved by save_pretrained"
        )
    try:
        with whole_directory(directory, durable=True) as staging:
            if config.model.source == "tiny":
                _build_tiny(config, staging, console)
            else:
                from shoal.models.smollm2 import expand

                with console.status("expanding SmolLM2-135M-Instruct (once, about half a minute)"):
                    expand(staging)
    except OSError:
        # Another process made the same model first: a rename onto a directory that is not empty is refused.
        if not directory.is_dir():
            raise
    return directory


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
