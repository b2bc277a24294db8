"""A recording on disk: JSON lines, the action table first, then one change per line. It holds no frames.

A change has the text before, the actions, and the hash of the text that they must give. Recordings may come from
strangers: each line is checked before it is used, and what is in memory is bounded by the file's size. A change is as
small as the recorder's are, in lines too: an editor copies its list of lines at each keystroke. Whether it replays is
checked when it is first played.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import FbamError
from shoal.fbam.recording.actions import MAX_WORDS, ActionTable
from shoal.fbam.recording.editor import MAX_TEXT_BYTES
from shoal.fbam.recording.keystrokes import replayed
from shoal.files import open_regular, whole_file

FORMAT = 1
MAX_LINE_BYTES = 8 << 20
MAX_FILE_BYTES = 1 << 30
MAX_ACTIONS = 8192  # of one change
MAX_PATH = 4096  # characters; git bounds no path, and each frame has this one in its status line
# Of a change: those before and those that are typed. No recorded change has as many: with at most MAX_LINE_PAIRS to
# compare, one of its texts has fewer than 250 lines, so the other needs more than MAX_ACTIONS to be typed or deleted.
MAX_LINES = 16_384
NUMBERS = tuple(range(1 << 16))  # of actions
Line = TypeVar("Line", bound=BaseModel)
Action = Annotated[int, Field(ge=0, lt=len(NUMBERS))]


def _shared(actions: list[int]) -> list[int]:
    """The same numbers, each of them one object however often it occurs: eight bytes instead of 36."""
    return [NUMBERS[action] for action in actions]


class Header(BaseModel):
    """First line of the file."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    words: list[str] = Field(max_length=MAX_WORDS)


class Change(BaseModel):
    """One file before a commit, and the keystrokes that make it what the commit made it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    path: str = Field(max_length=MAX_PATH)
    before: str
    actions: Annotated[list[Action], Field(min_length=1, max_length=MAX_ACTIONS), AfterValidator(_shared)]
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
    return gives(change, replayed(change.before.encode(), change.actions, table))


def gives(change: Change, text: bytes) -> bool:
    """Whether a text is the one that the commit has."""
    return text_hash(text) == change.after_sha256


def write_recording(path: Path, table: ActionTable, changes: Iterable[Change]) -> None:
    """Writes a file that readers see whole or not at all."""
    header = Header(format=FORMAT, words=[word.decode() for word in table.words])
    with whole_file(path) as staging, staging.open("xb") as file:
        for line in (header, *changes):
            file.write(line.model_dump_json().encode() + b"\n")


def read_recording(path: Path) -> Recording:
    """A recording whose every action is in its table and whose texts stay small; an error names the line and the rule.

    Whether its changes replay is not checked here: that takes far longer than reading.
    """
    lines = enumerate(_lines(path), 1)
    number, first = next(lines, (0, b""))
    if number == 0:
        raise FbamError(f"recording {path}: empty; write one with: shoal fbam record REPOSITORY {path}")
    header = _parsed(Header, first, path, number)
    try:
        table = ActionTable([word.encode() for word in header.words])
    except FbamError as error:
        raise FbamError(f"recording {path}: line 1: {error}") from error
    return Recording(table, tuple(_checked_changes(lines, table, path)))


def _checked_changes(lines: Iterable[tuple[int, bytes]], table: ActionTable, path: Path) -> Iterator[Change]:
    typed = [table.typed(action) for action in range(table.count)]
    sizes, breaks = [len(text) for text in typed], [text.count(b"\n") for text in typed]
    for number, line in lines:
        change = _parsed(Change, line, path, number)
        where = f"recording {path}: line {number}"
        if (largest := max(change.actions)) >= table.count:
            raise FbamError(f"{where}: action {largest}: its table has 0 .. {table.count - 1}")
        before = change.before.encode()
        for what, size, limit in (
            ("bytes before", len(before), MAX_TEXT_BYTES),
            ("bytes that are typed", sum(map(sizes.__getitem__, change.actions)), MAX_TEXT_BYTES),
            ("lines", before.count(b"\n") + sum(map(breaks.__getitem__, change.actions)), MAX_LINES),
        ):
            if size > limit:
                raise FbamError(f"{where}: {size:,} {what}, allowed are {limit:,}; make it with: shoal fbam record")
        yield change


def _parsed(kind: type[Line], line: bytes, path: Path, number: int) -> Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        why = error.errors()[0]
        where = ".".join(map(str, why["loc"]))
        raise FbamError(
            f"recording {path}: line {number}: {where or 'it'}: {why['msg']}; format {FORMAT} is read: record it again"
        ) from error


def _lines(path: Path) -> Iterator[bytes]:
    number = total = 0
    try:
        with open_regular(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number, total = number + 1, total + len(line)
                if len(line) > MAX_LINE_BYTES or total > MAX_FILE_BYTES:
                    raise FbamError(
                        f"recording {path}: line {number}: a line has at most {MAX_LINE_BYTES:,} bytes, "
                        f"a file {MAX_FILE_BYTES:,}; record fewer commits"
                    )
                yield line
    except OSError as error:
        raise FbamError(f"recording {path}: cannot be read ({error.strerror})") from error
