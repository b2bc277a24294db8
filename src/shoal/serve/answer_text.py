"""The text of an answer while its tokens come: whole characters only, and nothing of a stop string is ever shown."""

from collections.abc import Callable, Sequence

BROKEN = "\N{REPLACEMENT CHARACTER}"
# Tokens that are decoded again with each new one, at most: a tokenizer joins neighbours only.
MAX_WINDOW = 64
CONTEXT = 8


class AnswerText:
    """Turns tokens into text one by one, and notices the first stop string.

    The text of a whole answer and the joined pieces of a streamed one are the same, because both come from here.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that were given out
        self._held = ""  # may be the beginning of a stop string
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that can be shown now that this token is there."""
        if self.stopped:
            return ""
        self._window.append(token)
        return self._release(self._fresh(last=False))

    def end(self) -> str:
        """The rest: what was held back did not become a stop string."""
        if self.stopped:
            return ""
        text = self._release(self._fresh(last=True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _fresh(self, *, last: bool) -> str:
        """Text that the window has more than before, without a character of which only some bytes are there."""
        text = self._decode(self._window)
        whole = text if last or not text.endswith(BROKEN) else text[:-1]
        fresh, self._shown = whole[self._shown :], max(self._shown, len(whole))
        if (whole == text and len(self._window) > 2 * CONTEXT) or len(self._window) >= MAX_WINDOW:
            self._move()
        return fresh

    def _move(self) -> None:
        """Forgets all but the last tokens, which the next one may have to be decoded with."""
        self._window = self._window[-CONTEXT:]
        text = self._decode(self._window)
        self._shown = len(text) - text.endswith(BROKEN)

    def _release(self, fresh: str) -> str:
        text = self._held + fresh
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
