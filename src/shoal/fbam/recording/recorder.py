"""From a repository's history to a recording: each text change becomes keystrokes that replay to its exact bytes."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from shoal.errors import FbamError
from shoal.fbam.recording.actions import ActionTable, common_words
from shoal.fbam.recording.editor import MAX_TEXT_BYTES
from shoal.fbam.recording.keystrokes import Edit, LeftOut, find_edits, record_change
from shoal.fbam.recording.recording_file import MAX_ACTIONS, MAX_PATH, Change, Recording, text_hash, write_recording
from shoal.fbam.recording.repository import FileChange, Limits, Repository
from shoal.files import check_writable

GROUP = 256  # changes whose blobs are read at once


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How much of a history is recorded, and how."""

    limits: Limits = field(default_factory=Limits)
    max_changes: int = 2000
    max_actions: int = MAX_ACTIONS
    """Of one change; longer ones are left out."""
    words: int = 2000
    """Size of the vocabulary of words, learned from what the changes type."""

    def __post_init__(self) -> None:
        for what, value, limit in (
            ("blob_bytes", self.limits.blob_bytes, MAX_TEXT_BYTES),
            ("max_actions", self.max_actions, MAX_ACTIONS),
        ):
            if value > limit:
                raise FbamError(f"{what} {value:,}: a recording has at most {limit:,}; give that or less")


@dataclass(frozen=True, slots=True)
class TextChange:
    """A change of a text file that is small enough to be recorded."""

    commit: str
    path: str
    before: bytes
    after: bytes
    edits: list[Edit] | LeftOut


@dataclass(slots=True)
class RecordReport:
    """What became of a history's changes."""

    eligible: int = 0
    """Added or modified text files (UTF-8, no NUL) within the size limit."""
    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Eligible changes that are not in the recording, by reason."""
    not_text: int = 0
    """Changes of other files: binary, too large, or with a missing object."""


def record_repository(
    repository: Path, out: Path, options: RecordOptions, progress: Callable[[str], None] = lambda _: None
) -> tuple[Recording, RecordReport]:
    """Records a history into a file. Nothing in the repository is run, written or checked out."""
    check_writable(out)  # a history takes minutes
    report = RecordReport()
    with Repository(repository, options.limits) as source:
        progress("reading the history")
        listed = islice(source.changes(), options.max_changes)
        texts = list(_texts(source, listed, report))
    progress("choosing words")
    table = ActionTable(common_words(map(_typed_text, texts), options.words))
    changes: list[Change] = []
    for number, text in enumerate(texts):
        progress(f"change {number + 1} of {len(texts)}")
        actions = _keystrokes(text, table, options.max_actions)
        if isinstance(actions, LeftOut):
            report.left_out[actions.reason] += 1
            continue
        report.kept += 1
        changes.append(
            Change(
                commit=text.commit,
                path=text.path,
                before=text.before.decode(),
                actions=actions,
                after_sha256=text_hash(text.after),
            )
        )
    write_recording(out, table, changes)
    return Recording(table, tuple(changes)), report


def _texts(source: Repository, listed: Iterator[FileChange], report: RecordReport) -> Iterator[TextChange]:
    for group in _groups(listed):
        blobs = dict(source.blobs(id_ for change in group for id_ in (change.before, change.after) if id_ is not None))
        blobs = {id_: text for id_, text in blobs.items() if is_text(text)}
        for change in group:
            before = blobs.get(change.before) if change.before is not None else b""
            after = blobs.get(change.after)
            if before is None or after is None:
                report.not_text += 1
                continue
            report.eligible += 1
            yield TextChange(change.commit, change.path, before, after, find_edits(before, after))


def is_text(data: bytes) -> bool:
    """UTF-8 without NUL."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _typed_text(change: TextChange) -> bytes:
    return b"" if isinstance(change.edits, LeftOut) else b"\n".join(edit.new for edit in change.edits)


def _keystrokes(change: TextChange, table: ActionTable, max_actions: int) -> list[int] | LeftOut:
    if isinstance(change.edits, LeftOut):
        return change.edits
    if len(change.path) > MAX_PATH:
        return LeftOut(f"a path of more than {MAX_PATH:,} characters")
    return record_change(change.before, change.after, change.edits, table, max_actions)


def _groups(listed: Iterator[FileChange]) -> Iterator[list[FileChange]]:
    while group := list(islice(listed, GROUP)):
        yield group
