"""The rows behind a recipe: local JSON and Parquet files as they are, anything else through `datasets`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import TaskError
from shoal.extras import require
from shoal.tasks.sources.lmeval.recipe import Recipe
from shoal.tasks.sources.table import read_table

Doc = Mapping[str, Any]
Docs = Mapping[str, Sequence[Doc]]
TABLES = (".json", ".jsonl", ".parquet")


def read_docs(recipe: Recipe, path: Path, data: Any = None) -> Docs:
    """Rows by split; files that belong to no split are the split `train`, as they are for `datasets`."""
    options = dict(recipe.dataset_kwargs or {})
    options.pop("trust_remote_code", None)  # nobody is
    if data is not None:
        return _read_files(data, path)
    if Path(recipe.dataset_path).suffix in TABLES:
        return _read_files(recipe.dataset_path, path)
    if recipe.dataset_path in ("json", "parquet") and set(options) == {"data_files"}:
        return _read_files(options["data_files"], path)
    return _from_datasets(recipe, path, options)


def _read_files(data: Any, path: Path) -> Docs:
    splits = data if isinstance(data, dict) else {"train": data}
    found: dict[str, list[Doc]] = {}
    for split, names in splits.items():
        files = [names] if isinstance(names, str) else names
        if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
            raise TaskError(f"task source lm-eval/{path}: data {str(names)[:80]!r}: must be a file, or a list of files")
        found[str(split)] = [row for name in files for row in read_table(_near(path, name))]
    return found


def _near(recipe: Path, name: str) -> Path:
    """A file beside the recipe, else one seen from where we are."""
    beside = recipe.parent / name
    return beside if beside.exists() else Path(name)


def _from_datasets(recipe: Recipe, path: Path, options: dict[str, Any]) -> Docs:
    where = f"task source lm-eval/{path}: dataset_path {recipe.dataset_path}"
    require("datasets", where, TaskError)
    import datasets

    place = _near(path, recipe.dataset_path)
    try:
        if (place / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(place))
        else:
            found = datasets.load_dataset(
                str(place) if place.exists() else recipe.dataset_path, recipe.dataset_name, **options
            )
        return {str(split): list(rows) for split, rows in found.items()}
    except Exception as error:  # foreign code, which meets files, networks and other people's scripts
        raise TaskError(f"{where}: cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
