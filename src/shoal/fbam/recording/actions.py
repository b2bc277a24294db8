"""The vocabulary of actions: bytes as a terminal sends them, runs of arrow keys, and words."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from shoal.errors import FbamError
from shoal.fbam.recording.editor import Arrow, Editor

BYTES = 256
MAX_RUN = 31  # steps of the cursor in one action: 4 x 31 = 124 arrow actions, as in the published model
ARROWS = len(Arrow) * MAX_RUN
MAX_WORDS = 20_352 - BYTES - ARROWS  # what the published vocabulary leaves for words
MAX_WORD_BYTES = 64
BACKSPACE, SAVE = 0x7F, 0x13  # the bytes of the keys, Ctrl-S for the second
# Bytes that a key types; others mean something to a terminal, or are not sent by one.
TYPED = frozenset({0x09, 0x0A, *range(0x20, 0x7F), *range(0x80, 0x100)})
WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{2,63}| {2,64}")


class ActionTable:
    """Numbers of actions: 256 bytes, 124 arrow runs, then words. An action types, deletes, moves or saves."""

    def __init__(self, words: Sequence[bytes] = ()) -> None:
        if len(words) > MAX_WORDS:
            raise FbamError(f"{len(words)} words: an action table has at most {MAX_WORDS}")
        for word in words:
            if not 2 <= len(word) <= MAX_WORD_BYTES or not TYPED.issuperset(word):
                raise FbamError(f"word {word!r:.80}: give 2 to {MAX_WORD_BYTES} bytes that keys type")
        self.words = tuple(words)

    @property
    def count(self) -> int:
        return BYTES + ARROWS + len(self.words)

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {word: BYTES + ARROWS + index for index, word in enumerate(self.words)}

    def typing(self, data: bytes) -> Iterator[int]:
        """Actions that type these bytes: words where the table has them, else single bytes."""
        at = 0
        while at < len(data):
            found = WORD.match(data, at)
            number = self._numbers.get(found[0]) if found else None
            if found and number is not None:
                yield number
                at = found.end()
            else:
                # A word that the table does not have is typed byte by byte: its inside is not a word of its own.
                end = found.end() if found else at + 1
                yield from data[at:end]
                at = end

    def apply(self, editor: Editor, action: int) -> Editor:
        """The editor after an action; saving, and bytes that no key types, leave it as it is."""
        if not 0 <= action < self.count:
            raise FbamError(f"action {action}: this table has 0 .. {self.count - 1}")
        if BYTES <= action < BYTES + ARROWS:
            arrow, run = divmod(action - BYTES, MAX_RUN)
            return editor.move(Arrow(arrow), run + 1)
        if action == BACKSPACE:
            return editor.backspace()
        typed = self.typed(action)
        return editor.insert(typed) if typed else editor

    def typed(self, action: int) -> bytes:
        """What an action adds to the text; nothing for one that moves, deletes or saves."""
        if action >= BYTES + ARROWS:
            return self.words[action - BYTES - ARROWS]
        return bytes([action]) if action in TYPED else b""

    def describe(self, action: int) -> str:
        """An action for people."""
        if action >= BYTES + ARROWS:
            return repr(self.words[action - BYTES - ARROWS].decode(errors="replace"))
        if action >= BYTES:
            arrow, run = divmod(action - BYTES, MAX_RUN)
            return f"{Arrow(arrow).name.lower()} {run + 1}"
        return {BACKSPACE: "backspace", SAVE: "save"}.get(action, repr(chr(action)))


def moving(arrow: Arrow, count: int) -> Iterator[int]:
    """Actions that move the cursor by so many steps."""
    while count > 0:
        run = min(count, MAX_RUN)
        yield BYTES + int(arrow) * MAX_RUN + run - 1
        count -= run


def common_words(texts: Iterable[bytes], count: int) -> list[bytes]:
    """The words that save the most keystrokes, by (bytes - 1) x occurrences; ties in the order of their bytes."""
    seen: Counter[bytes] = Counter()
    for text in texts:
        seen.update(WORD.findall(text))
    worth = [(-(len(word) - 1) * times, word) for word, times in seen.items() if times > 1]
    return [word for _, word in sorted(worth)[:count]]
