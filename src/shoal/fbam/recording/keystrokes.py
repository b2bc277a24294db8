"""From a change of a text to keystrokes that make exactly that change, or to the reason why it is left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from shoal.fbam.recording.actions import BACKSPACE, SAVE, TYPED, ActionTable, moving
from shoal.fbam.recording.editor import Arrow, Editor

# Line pairs that a comparison may look at. Its time grows with their number, and files come from strangers.
MAX_LINE_PAIRS = 4_000_000


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes begin .. end - 1 of the text before become `new`."""

    begin: int
    end: int
    new: bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a change is not recorded."""

    reason: str


def record_change(before: bytes, after: bytes, table: ActionTable, max_actions: int) -> list[int] | LeftOut:
    """Actions that turn one text into the other and save it; replayed before they are returned."""
    edits = find_edits(before, after)
    if isinstance(edits, LeftOut):
        return edits
    if not all(TYPED.issuperset(edit.new) for edit in edits):
        return LeftOut("types a control character")
    actions: list[int] = []
    for action in _keys(Editor.opened(before), edits, table):
        actions.append(action)
        if len(actions) >= max_actions:
            return LeftOut(f"more than {max_actions} actions")
    actions.append(SAVE)
    if replayed(before, actions, table) != after:
        return LeftOut("replays to another text")  # a defect of ours; it must not reach a recording
    return actions


def replayed(before: bytes, actions: list[int], table: ActionTable) -> bytes:
    """The text after all actions."""
    editor = Editor.opened(before)
    for action in actions:
        editor = table.apply(editor, action)
    return editor.text()


def find_edits(before: bytes, after: bytes) -> list[Edit] | LeftOut:
    """Edits from top to bottom: changed lines, without the bytes that both sides begin or end with."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if len(old) * len(new) > MAX_LINE_PAIRS:
        return LeftOut(f"more than {MAX_LINE_PAIRS:,} pairs of lines to compare")
    offsets = [0]
    for line in old:
        offsets.append(offsets[-1] + len(line))
    edits = []
    for tag, old_begin, old_end, new_begin, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed, added = b"".join(old[old_begin:old_end]), b"".join(new[new_begin:new_end])
            head = _common(removed, added)
            tail = _common(removed[head:][::-1], added[head:][::-1])
            begin, end = offsets[old_begin] + head, offsets[old_end] - tail
            edits.append(Edit(begin, end, added[head : len(added) - tail]))
    return edits


def _common(first: bytes, second: bytes) -> int:
    """How many bytes both begin with."""
    least = min(len(first), len(second))
    return next((at for at in range(least) if first[at] != second[at]), least)


def _keys(editor: Editor, edits: list[Edit], table: ActionTable) -> Iterator[int]:
    """Keystrokes of the edits, in order: go to the end of the old bytes, delete them, type the new ones."""
    shift = 0
    for edit in edits:
        keys = list(_going_to(editor, *_place(editor.lines, edit.end + shift), table))
        keys += [BACKSPACE] * (edit.end - edit.begin)
        keys += table.typing(edit.new)
        for key in keys:
            editor = table.apply(editor, key)
            yield key
        shift += len(edit.new) - (edit.end - edit.begin)


def _place(lines: tuple[bytes, ...], offset: int) -> tuple[int, int]:
    """Row and column of a byte offset."""
    for row, line in enumerate(lines):
        if offset <= len(line):
            return row, offset
        offset -= len(line) + 1
    raise AssertionError(f"offset {offset} is behind the text")


def _going_to(editor: Editor, row: int, column: int, table: ActionTable) -> Iterator[int]:
    """First to the line, then along it. Each run may stop at a line that is shorter than the column."""
    for action in moving(Arrow.DOWN if row > editor.row else Arrow.UP, abs(row - editor.row)):
        editor = table.apply(editor, action)
        yield action
    yield from moving(Arrow.RIGHT if column > editor.column else Arrow.LEFT, abs(column - editor.column))
