"""A recording on disk: JSON lines, the action table first, then one change per line. It holds no frames.

A change has the text before, the actions, and the hash of the text that they must give. Recordings may come from
strangers: sizes are bounded and each line is checked before it is used.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import FbamError
from shoal.fbam.recording.actions import MAX_WORDS, ActionTable
from shoal.fbam.recording.keystrokes import replayed
from shoal.files import open_regular, whole_file

FORMAT = 1
MAX_LINE_BYTES = 8 << 20
MAX_FILE_BYTES = 1 << 30
MAX_ACTIONS = 65_536  # of one change
Line = TypeVar("Line", bound=BaseModel)


class Header(BaseModel):
    """First line of the file."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    words: list[str] = Field(max_length=MAX_WORDS)


class Change(BaseModel):
    """One file before a commit, and the keystrokes that make it what the commit made it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    path: str
    before: str
    actions: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 16)]], Field(min_length=1, max_length=MAX_ACTIONS)]
    after_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class Recording:
    """Changes in the order of their commits, and the table that their actions are numbers of."""

    table: ActionTable
    changes: tuple[Change, ...]

    @property
    def frames(self) -> int:
        """One frame per action."""
        return sum(len(change.actions) for change in self.changes)


def text_hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def replays(change: Change, table: ActionTable) -> bool:
    """Whether the actions give the text that the commit has, byte for byte."""
    return text_hash(replayed(change.before.encode(), change.actions, table)) == change.after_sha256


def write_recording(path: Path, table: ActionTable, changes: Iterable[Change]) -> None:
    """Writes a file that readers see whole or not at all."""
    header = Header(format=FORMAT, words=[word.decode() for word in table.words])
    with whole_file(path) as staging, staging.open("xb") as file:
        for line in (header, *changes):
            file.write(line.model_dump_json().encode() + b"\n")


def read_recording(path: Path) -> Recording:
    """A recording whose every action is in its table; an error names the line and the rule."""
    first, *rest = _lines(path)
    header = _parsed(Header, first, path, 1)
    try:
        table = ActionTable([word.encode() for word in header.words])
    except FbamError as error:
        raise FbamError(f"recording {path}: line 1: {error}") from error
    changes = tuple(_parsed(Change, line, path, number) for number, line in enumerate(rest, 2))
    for number, change in enumerate(changes, 2):
        if (largest := max(change.actions)) >= table.count:
            raise FbamError(f"recording {path}: line {number}: action {largest}: its table has 0 .. {table.count - 1}")
    return Recording(table, changes)


def _parsed(kind: type[Line], line: bytes, path: Path, number: int) -> Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        why = error.errors()[0]
        where = ".".join(map(str, why["loc"]))
        raise FbamError(
            f"recording {path}: line {number}: {where or 'it'}: {why['msg']}; format {FORMAT} is read: record it again"
        ) from error


def _lines(path: Path) -> Sequence[bytes]:
    """The lines of a file that has at least one."""
    lines: list[bytes] = []
    total = 0
    try:
        with open_regular(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                total += len(line)
                if len(line) > MAX_LINE_BYTES or total > MAX_FILE_BYTES:
                    raise FbamError(
                        f"recording {path}: line {len(lines) + 1}: a line has at most {MAX_LINE_BYTES:,} bytes, "
                        f"a file {MAX_FILE_BYTES:,}; record fewer commits"
                    )
                lines.append(line)
    except OSError as error:
        raise FbamError(f"recording {path}: cannot be read ({error.strerror})") from error
    if not lines:
        raise FbamError(f"recording {path}: empty; write one with: shoal fbam record REPOSITORY {path}")
    return lines
