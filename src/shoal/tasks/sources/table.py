"""Tasks from a table (JSONL, Parquet, CSV, datasets): deduplicated, a tenth held out, content-addressed."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.config import SolveRateConfig
from shoal.errors import TaskError
from shoal.extras import require
from shoal.files import parse_json
from shoal.tasks.prompts import posed
from shoal.tasks.rewards.extract import Place
from shoal.tasks.source import Score, Split, Task, split_of
from shoal.tasks.sources.released_rows import as_question, is_released, lacking, within

# What a task is made of, and the columns that it stands in unless the config says otherwise.
COLUMNS = {"question": "question", "answer": "answer", "tests": "tests", "split": "split"}
# Characters of one cell of a CSV file.
MAX_CELL = 1 << 24
HELDOUT_NAMES = ("heldout", "test", "validation", "eval")


class Rows:
    """A table as a source. It has no score of its own: a reward of the config gives it (`rewards.py`), or who knows
    more."""

    def __init__(
        self,
        name: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        place: Place = "whole",
        template: str = "{question}",
        solve_rate: SolveRateConfig | None = None,
    ) -> None:
        """`solve_rate` says which rows are trained on; held-out rows stay as they are, so that runs on all rows and on
        some are measured by the same ones."""
        self.name = name
        self._place = place
        self._template = template
        self._rows: dict[Split, list[dict[str, Any]]] = {"train": [], "heldout": []}
        digest = hashlib.sha256()
        seen: set[str] = set()
        self.duplicates = 0
        for row in rows:
            question = str(row["question"])
            if question in seen:
                self.duplicates += 1
                continue
            seen.add(question)
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
            self._rows[_split(row, question)].append(dict(row))
        self.sha256 = digest.hexdigest()
        if not seen:
            raise TaskError(f"task source {name}: holds no tasks")
        if solve_rate is not None:
            kept = within(self._rows["train"], solve_rate, f"task source {name}")
            self._rows["train"] = [dict(row) for row in kept]

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    @property
    def train_size(self) -> int:
        """Train tasks, after which they come again."""
        return len(self._rows["train"])

    @property
    def heldout_size(self) -> int:
        return len(self._rows["heldout"])

    def task(self, split: Split, index: int) -> Task:
        """Goes through the split's rows in their order, again and again."""
        rows = self._rows[split]
        if not rows:
            raise TaskError(
                f"task source {self.name}: none of its {len(self)} tasks is in the {split} split; add tasks, or a "
                "column `split` that says train or heldout"
            )
        return posed(self.name, index, rows[index % len(rows)], self._place, self._template)

    def score(self, task: Task, answer: str) -> float | Score:
        del answer
        raise TaskError(
            f"{task.source}: a table has no score of its own; set reward to math, code, exact, contains, "
            "row (for rows with a task_type) or python/..."
        )


def _split(row: Mapping[str, Any], question: str) -> Split:
    """What the row says, else by a hash of the question."""
    said = row.get("split")
    if said is None:
        return split_of(question)
    return "heldout" if str(said).lower() in HELDOUT_NAMES else "train"


def read_rows(path: Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of a JSONL, Parquet or CSV file, under our own names for their columns."""
    return rename(read_table(path), columns, f"file/{path}")


def read_table(path: Path) -> Sequence[Mapping[str, Any]]:
    """The rows of a JSONL, Parquet or CSV file as they are."""
    readers: dict[str, Callable[[Path], Sequence[Mapping[str, Any]]]] = {
        ".jsonl": _read_jsonl,
        ".json": _read_json,
        ".parquet": _read_parquet,
        ".csv": _read_csv,
    }
    if path.suffix not in readers:
        raise TaskError(f"task source file/{path}: must end in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise TaskError(f"task source file/{path}: cannot be read ({error.strerror or error})") from error


def rename(table: Iterable[Mapping[str, Any]], columns: Mapping[str, str], where: str) -> list[dict[str, Any]]:
    """Rows under our own names. All other columns stay as they are, for rewards of the user's own.

    Rows of the format that INTELLECT-2's tasks were released in need no names (`released_rows.py`).
    """
    if unknown := set(columns) - set(COLUMNS):
        raise TaskError(f"task source {where}: columns name {sorted(unknown)}; known: {', '.join(COLUMNS)}")
    theirs = COLUMNS | dict(columns)
    rows = []
    for number, row in enumerate(table):
        if not columns and is_released(row):
            asked = as_question(row, f"task source {where}: row {number}")
            rows.append({name: value for name, value in asked.items() if value is not None})
            continue
        if not columns and (missing := lacking(row)):
            raise TaskError(
                f"task source {where}: row {number} has no {' and no '.join(map(repr, missing))}, which tasks of "
                "INTELLECT-2's format have; leave it out"
            )
        for name in ("question", *columns):
            if row.get(theirs[name]) is None:
                raise TaskError(
                    f"task source {where}: row {number} has no {theirs[name]!r}; it has {', '.join(map(str, row))}. "
                    f'Say which column it is: columns = {{ {name} = "..." }}'
                )
        taken = {name: row[column] for name, column in theirs.items() if row.get(column) is not None}
        rest = {str(key): value for key, value in row.items() if key not in theirs.values() and value is not None}
        rows.append(rest | taken)
    return rows


def _read_jsonl(path: Path) -> Sequence[Mapping[str, Any]]:
    rows = []
    # Not splitlines: a text may hold U+2028 and other things that end a line elsewhere.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"task source file/{path}: line {number} is not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise TaskError(f"task source file/{path}: line {number} is not a JSON object but {line[:40]!r}")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"task source file/{path}: is not UTF-8 text ({error}); convert it") from None


def _read_json(path: Path) -> Sequence[Mapping[str, Any]]:
    """A list of rows, else one row per line."""
    text = _text(path)
    if not text.lstrip().startswith("["):
        return _read_jsonl(path)
    try:
        rows = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"task source file/{path}: is not valid JSON ({error})") from None
    if number := next((number for number, row in enumerate(rows, 1) if not isinstance(row, dict)), 0):
        raise TaskError(
            f"task source file/{path}: row {number} is not a JSON object but {str(rows[number - 1])[:40]!r}"
        )
    return list(rows)


def _read_parquet(path: Path) -> Sequence[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise TaskError(f"task source file/{path}: is not a valid Parquet file ({error})") from None
    return rows


def _read_csv(path: Path) -> Sequence[Mapping[str, Any]]:
    """The first line names the columns; an empty cell has no value."""
    csv.field_size_limit(MAX_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = list(csv.DictReader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise TaskError(f"task source file/{path}: is not a valid CSV file ({error})") from None
    return [{str(name): cell or None for name, cell in row.items() if name is not None} for row in found]


def read_dataset(name: str, options: Mapping[str, Any], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of a dataset that `datasets` knows: a directory, or a name on the hub where there is a network."""
    where = f"dataset/{name}"
    require("datasets", f"task source {where}", TaskError)
    import datasets

    try:
        if (Path(name) / "state.json").is_file() or (Path(name) / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, **options)
    except Exception as error:  # foreign code, which meets files, networks and other people's scripts
        raise TaskError(f"task source {where}: cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(found, datasets.Dataset):
        parts = {part: rows for part, rows in found.items() if part == "train" or part in HELDOUT_NAMES}
        table = [dict(row) | {"split": part} for part, rows in parts.items() for row in rows]
        return rename(table, columns, where)
    return rename(found, columns, where)
