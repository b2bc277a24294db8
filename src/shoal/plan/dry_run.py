"""What can be checked of a run before it starts, without starting, building or writing anything.

What is wrong with the config raises; what is merely not here yet, such as a model on another disk, is a note.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from shoal.config import RunConfig
from shoal.models.base import base_model_dir
from shoal.protocol.rates.rates_file import read_architecture
from shoal.protocol.rates.rates_table import RatesTable
from shoal.rundir import MAY_CHANGE, RUN_FILE, check_unchanged, open_run

ROLES: tuple[Literal["train", "workers", "audit", "eval"], ...] = ("train", "workers", "audit", "eval")


def check_run(config: RunConfig, path: Path) -> Iterator[str]:
    """Notes on a run that would live in `path`; a ShoalError for what would stop it at its start."""
    yield from _directory(config, path)
    yield _tasks(config)
    yield from _model(config)
    yield from _devices(config)


def _directory(config: RunConfig, path: Path) -> Iterator[str]:
    if (path / RUN_FILE).exists():
        before = open_run(path).config
        # Hashes of task files are part of a run's config, and written when it is prepared.
        check_unchanged(before, config.model_copy(update={"tasks": before.tasks}), path, MAY_CHANGE)
        yield f"run {path}: is there already and would be resumed"


def _tasks(config: RunConfig) -> str:
    from shoal.tasks.build import build_source

    first = build_source(config.tasks).task("train", 0)
    return f"tasks: every source can be built; the first task is of {first.source}"


def _model(config: RunConfig) -> Iterator[str]:
    from shoal.tasks.build import has_content

    directory, source = base_model_dir(config), config.model.source
    has_config = (directory / "config.json").is_file()
    if config.model.dtype == "bfloat16":
        RatesTable.first(config.audit, read_architecture(directory) if has_config else None)
    if any(directory.glob("*.safetensors")) and has_config:
        yield f"model {source}: is here, in {directory}"
    elif source == "tiny" and any(has_content(task) and task.sha256 is None for task in config.tasks):
        yield "model tiny: shoal run makes it, unless it was made from what these tasks hold now"
    elif source in ("tiny", "smollm2"):
        yield f"model {source}: is not here yet; shoal run makes it"
    else:
        yield (
            f"model {source}: its weights are not on this machine; save the model there, with its tokenizer, before "
            "you start the run. shoal plan needs its config.json alone"
        )


def _devices(config: RunConfig) -> Iterator[str]:
    """A device that is named must be here; "auto" always is."""
    named = [role for role in ROLES if config.device_of(role) != "auto"]
    if named:
        from shoal.devices import resolve

        for role in named:
            device = resolve(
                config.device_of(role), what=f"{role}.device" if getattr(config, role).device else "device"
            )
            yield f"{role}: computes on {device}"
