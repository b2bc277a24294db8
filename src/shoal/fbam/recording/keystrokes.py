"""From a change of a text to keystrokes that make exactly that change, or to the reason why it is left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import accumulate

from shoal.fbam.recording.actions import BACKSPACE, SAVE, TYPED, ActionTable, moving
from shoal.fbam.recording.editor import Arrow, Editor

# Files come from strangers. The first bounds the product of two texts' numbers of lines, the second how often equal
# lines are looked at, which the first does not: a search for the longest block looks at all pairs of equal lines in
# its range, and one search follows another. The histories that were recorded need 49,000 at most.
MAX_LINE_PAIRS = 4_000_000
MAX_LOOKS = 4_000_000


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


class TooManyLooksError(Exception):
    """Two texts have so many equal lines that their comparison was given up."""


class BoundedMatcher(SequenceMatcher[bytes]):
    """Finds the blocks that SequenceMatcher finds, or raises TooManyLooksError: its time is cubic in the worst case."""

    def __init__(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        super().__init__(None, old, new, autojunk=False)
        times = Counter(new)
        self._looks_before = [0, *accumulate(1 + times[line] for line in old)]
        self._looks_left = MAX_LOOKS

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        end = len(self._looks_before) - 1 if ahi is None else ahi
        self._looks_left -= self._looks_before[end] - self._looks_before[alo]
        if self._looks_left < 0:
            raise TooManyLooksError
        return super().find_longest_match(alo, ahi, blo, bhi)


def record_change(
    before: bytes, after: bytes, edits: Sequence[Edit], table: ActionTable, max_actions: int
) -> list[int] | LeftOut:
    """Actions that make the edits between two texts and save; replayed before they are returned."""
    if not all(TYPED.issuperset(edit.new) for edit in edits):
        return LeftOut("types a control character")
    if sum(edit.end - edit.begin for edit in edits) >= max_actions:  # backspaces
        return LeftOut(f"more than {max_actions} actions")
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
    try:
        opcodes = BoundedMatcher(old, new).get_opcodes()
    except TooManyLooksError:
        return LeftOut(f"more than {MAX_LOOKS:,} looks at equal lines to compare")
    edits = []
    for tag, old_begin, old_end, new_begin, new_end in opcodes:
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


def _keys(editor: Editor, edits: Sequence[Edit], table: ActionTable) -> Iterator[int]:
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
