"""Keystrokes: whatever two texts are, recorded actions give the second one byte for byte, or nothing is recorded."""

from difflib import Match, SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import FbamError
from shoal.fbam.recording.actions import (
    ARROWS,
    BACKSPACE,
    BYTES,
    MAX_WORDS,
    SAVE,
    TYPED,
    ActionTable,
    common_words,
    moving,
)
from shoal.fbam.recording.editor import Arrow, Editor
from shoal.fbam.recording.keystrokes import (
    MAX_LINE_PAIRS,
    MAX_LOOKS,
    BoundedMatcher,
    LeftOut,
    find_edits,
    record_change,
    replayed,
)

TABLE = ActionTable([b"return", b"    "])
# Few different lines, so that changes share some; bytes that keys type, with UTF-8 among them.
LINES = st.sampled_from([b"", b"a", b"    return x", b"return", b"caf\xc3\xa9", b"\tb", b"a b a b"])
TEXTS = st.lists(LINES, max_size=12).map(b"\n".join)
MANY = 10_000


def recorded(before: bytes, after: bytes, max_actions: int = MANY) -> list[int] | LeftOut:
    edits = find_edits(before, after)
    return edits if isinstance(edits, LeftOut) else record_change(before, after, edits, TABLE, max_actions)


@given(TEXTS, TEXTS)
def test_recorded_actions_give_the_text_byte_for_byte(before: bytes, after: bytes) -> None:
    actions = recorded(before, after)
    assert not isinstance(actions, LeftOut)
    assert replayed(before, actions, TABLE) == after
    assert actions[-1] == SAVE


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_recorded_exactly_or_left_out(before: bytes, after: bytes) -> None:
    actions = recorded(before, after)
    if isinstance(actions, LeftOut):
        assert actions.reason == "types a control character"
        assert not TYPED.issuperset(after)
    else:
        assert replayed(before, actions, TABLE) == after


@given(st.binary(max_size=30), st.lists(st.integers(0, TABLE.count - 1), max_size=30))
def test_every_action_leaves_the_cursor_inside_the_text(before: bytes, actions: list[int]) -> None:
    editor = Editor.opened(before)
    for action in actions:
        editor = TABLE.apply(editor, action)
        assert 0 <= editor.row < len(editor.lines)
        assert 0 <= editor.column <= len(editor.lines[editor.row])


@given(TEXTS, st.binary(max_size=5).filter(lambda data: TYPED.issuperset(data)))
def test_backspaces_undo_what_was_typed(text: bytes, typed: bytes) -> None:
    editor = Editor.opened(text).move(Arrow.RIGHT, len(text) // 2)
    after = editor.insert(typed)
    for _ in typed:
        after = after.backspace()
    assert after == editor


def test_the_cursor_goes_over_the_ends_of_lines_and_stops_at_those_of_the_text() -> None:
    editor = Editor.opened(b"abc\nd\nefg")
    assert editor.move(Arrow.RIGHT, 4) == Editor(editor.lines, 1, 0)
    assert editor.move(Arrow.RIGHT, 99) == Editor(editor.lines, 2, 3)
    assert Editor(editor.lines, 2, 1).move(Arrow.LEFT, 2) == Editor(editor.lines, 1, 1)
    assert Editor(editor.lines, 2, 1).move(Arrow.LEFT, 99) == editor
    assert Editor(editor.lines, 0, 3).move(Arrow.DOWN, 1) == Editor(editor.lines, 1, 1)
    assert editor.move(Arrow.UP, 1) == editor
    assert editor.backspace() == editor


def test_words_are_typed_in_one_action_and_others_byte_by_byte() -> None:
    word, indent = BYTES + ARROWS, BYTES + ARROWS + 1
    assert list(TABLE.typing(b"    return returned")) == [indent, word, *b" returned"]
    assert b"".join(TABLE.words) == b"return    "


def test_the_published_vocabulary_is_bytes_arrow_runs_and_words() -> None:
    assert (BYTES, ARROWS, BYTES + ARROWS + MAX_WORDS) == (256, 124, 20_352)
    assert list(moving(Arrow.UP, 31)) == [BYTES + 30]
    assert list(moving(Arrow.RIGHT, 40)) == [BYTES + ARROWS - 1, BYTES + 3 * 31 + 8]


def test_the_words_that_save_the_most_keystrokes_are_chosen() -> None:
    assert common_words([b"return return\n    x", b"    y once"], 9) == [b"return", b"    "]
    assert common_words([b"bbb bbb aaa aaa"], 1) == [b"aaa"]


def test_a_change_of_too_many_actions_or_lines_is_left_out() -> None:
    assert recorded(b"", b"x" * 20, 10) == LeftOut("more than 10 actions")
    assert recorded(b"x" * 20, b"", 10) == LeftOut("more than 10 actions")
    many = b"\n" * int(MAX_LINE_PAIRS**0.5 + 1)
    assert recorded(many, many + b"x") == LeftOut("more than 4,000,000 pairs of lines to compare")


def test_a_comparison_that_would_take_cubic_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second line is alike: each block is one line long, and is searched for among all that are left."""
    looks, times = 0, 1000
    longest = SequenceMatcher.find_longest_match

    def counted(matcher: SequenceMatcher[bytes], alo: int, ahi: int, blo: int, bhi: int) -> Match:
        nonlocal looks
        looks += (ahi - alo) // 2 * times
        return longest(matcher, alo, ahi, blo, bhi)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", counted)
    found = recorded(b"x\nu\n" * times, b"x\nv\n" * times)
    assert found == LeftOut("more than 4,000,000 looks at equal lines to compare")
    assert 0 < looks <= MAX_LOOKS


@given(TEXTS, TEXTS)
def test_the_bound_on_looks_does_not_change_what_is_found(before: bytes, after: bytes) -> None:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    assert BoundedMatcher(old, new).get_opcodes() == SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def test_a_word_that_no_key_types_and_an_action_without_a_meaning_are_refused() -> None:
    with pytest.raises(FbamError, match=r"word b'a\\x7f': give 2 to 64 bytes that keys type"):
        ActionTable([b"a\x7f"])
    with pytest.raises(FbamError, match=r"action 382: this table has 0 .. 381"):
        TABLE.apply(Editor.opened(b""), TABLE.count)


def test_actions_are_described_for_people() -> None:
    described = [TABLE.describe(action) for action in (ord("a"), BACKSPACE, SAVE, BYTES + 2, BYTES + ARROWS)]
    assert described == ["'a'", "backspace", "save", "up 3", "'return'"]
