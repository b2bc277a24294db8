"""Parts of a long benchmark on disk: one JSON file per part, so that a run which was stopped goes on with the others.

A part is named by what was asked, in full: another question, be it another learning rate, is another part. What the
code does is not in the name: remove the directory to measure again.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import BenchError
from shoal.files import make_directory, parse_json, read_regular, write_whole

DIGITS = 12  # of the hash in a file's name


class Parts:
    """Answers by name and question; without a directory nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        if directory is not None:
            make_directory(directory)

    def measured(self, name: str, asked: object, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The answer that is kept, or else what `measure` finds, which is kept."""
        kept = self.find(name, asked)
        if kept is None:
            kept = dict(measure())
            self.keep(name, asked, kept)
        return kept

    def find(self, name: str, asked: object) -> dict[str, Any] | None:
        """The answer to a question that was asked before."""
        path = self._path(name, asked)
        if path is None or not path.is_file():
            return None
        try:
            found: dict[str, Any] = parse_json(read_regular(path))["answer"]
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path}: not a part of a benchmark; remove it to measure it again") from error
        return found

    def keep(self, name: str, asked: object, answer: dict[str, Any]) -> None:
        path = self._path(name, asked)
        if path is not None:
            write_whole(path, json.dumps({"name": name, "asked": asked, "answer": answer}, indent=1).encode())
            path.with_suffix(".pt").unlink(missing_ok=True)

    def checkpoint(self, name: str, asked: object) -> Path | None:
        """Where an unfinished part may be stored until its answer is kept."""
        path = self._path(name, asked)
        return path and path.with_suffix(".pt")

    def _path(self, name: str, asked: object) -> Path | None:
        if self.directory is None:
            return None
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.directory / f"{name}-{digest[:DIGITS]}.json"
