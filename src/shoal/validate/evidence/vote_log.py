"""Append-only log of a validator's verdicts: one line per file, so that a restart forgets nothing.

The ledger is told from these alone. A rejected file whose maker is to blame is `r`, with the hash of the evidence; one
that failed through nobody's fault is `v`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from shoal.files import disk_errors, make_directory, parse_json


@dataclass(frozen=True, slots=True)
class Vote:
    """What was found of one file."""

    letter: Literal["a", "r", "v"]
    sha256: str
    tokens: int = 0
    evidence: str = ""
    """SHA-256 of the bundle, for a reject."""


class Votes:
    """Notes in a file that only grows; a torn last line is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._votes: dict[tuple[int, int], Vote] = {}
        make_directory(path.parent)
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    tree = parse_json(line)
                    place = int(tree.pop("step")), int(tree.pop("submission"))
                    self._votes[place] = Vote(**tree)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    continue

    def note(self, step: int, submission: int, vote: Vote) -> None:
        """Before the verdict is given: what others hear was written down."""
        self._votes[step, submission] = vote
        line = json.dumps({"step": step, "submission": submission, **asdict(vote)})
        with disk_errors(self._path), self._path.open("a") as file:
            file.write(f"\n{line}\n")

    def of(self, step: int, submission: int) -> Vote | None:
        return self._votes.get((step, submission))
