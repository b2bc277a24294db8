"""`shoal export`: a version as files that others load: a model directory for transformers, or an adapter for PEFT."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from shoal.errors import ConfigError, WeightsError
from shoal.files import numbered, whole_directory
from shoal.models.adapter_files import FILES, is_adapter, read_adapter
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.protocol.stores import Version
from shoal.rundir import RUN_FILE, RunDir, open_run


def export_version(target: Path, out: Path, number: int | None, *, adapter: bool) -> Version:
    """Writes a run's version to a new directory, merged or as the adapter that it is; says which version it was.

    `target` is a run's directory or one of its versions (RUN/weights/v000012).
    """
    run, named = _located(target)
    if number is not None and named is not None:
        raise ConfigError(f"export {target}: --version goes with a run's directory; this is version {named} already")
    channel, wanted = run.channel(), number if named is None else named
    version = channel.latest() if wanted is None else channel.version(wanted)
    if version is None:
        raise WeightsError(f"export {target}: version {wanted} is not there; there are {channel.numbers()}")
    if out.exists():
        raise ConfigError(f"export {target}: {out} exists; give --out a directory that does not")
    folder = channel.fetch(version)
    if adapter and not is_adapter(folder):
        why = "it is the base model" if version.number == 0 else "the run trains all weights"
        raise ConfigError(f"export {target}: version {version.number} is not an adapter ({why}); leave --adapter out")
    with whole_directory(out, durable=True) as staging:
        if adapter:
            read_adapter(folder)
            for name in FILES:
                shutil.copyfile(folder / name, staging / name)
        else:
            dtype = run.config.model.dtype
            write_model(staging, run.base_model, VersionReader(channel, dtype).read(folder), dtype)
    return version


def write_model(folder: Path, base: Path, weights: Mapping[str, Tensor], dtype: str) -> None:
    """Writes a model directory: the base's config and tokenizer with these weights."""
    policy = load(base, dtype)
    policy.set_weights(weights, str(folder))
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _located(target: Path) -> tuple[RunDir, int | None]:
    """The run of a directory, and the version's number if it is one of the run's versions."""
    if (target / RUN_FILE).is_file():
        return open_run(target), None
    number, run = numbered(target.name, "v"), target.resolve().parent.parent
    if number is None or not (run / RUN_FILE).is_file():
        raise ConfigError(
            f"export {target}: neither a run's directory nor one of its versions; give RUN or RUN/weights/v000012"
        )
    return open_run(run), number
