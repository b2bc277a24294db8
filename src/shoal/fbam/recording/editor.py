"""A text editor as a value: a keystroke gives the next editor, and the one before stays as it was."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

MAX_TEXT_BYTES = 64 << 10  # of a file that is recorded, and of what a change types


class Arrow(IntEnum):
    """Directions of the cursor, in the order of their actions."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3


@dataclass(frozen=True, slots=True)
class Editor:
    """Lines of bytes without their newlines, and a cursor between two bytes. Lines are shared between editors."""

    lines: tuple[bytes, ...]
    row: int = 0
    column: int = 0

    @classmethod
    def opened(cls, text: bytes) -> Self:
        """An editor of this text with the cursor at its start."""
        return cls(tuple(text.split(b"\n")))

    def text(self) -> bytes:
        return b"\n".join(self.lines)

    def insert(self, data: bytes) -> Self:
        """The editor after typing these bytes; a newline splits the line."""
        line = self.lines[self.row]
        *whole, last = (line[: self.column] + data).split(b"\n")
        new = (*whole, last + line[self.column :])
        return replace(self, lines=self._with(self.row, 1, new), row=self.row + len(whole), column=len(last))

    def backspace(self) -> Self:
        """The editor without the byte before the cursor; at the start of a line it joins the line before."""
        line = self.lines[self.row]
        if self.column:
            shorter = line[: self.column - 1] + line[self.column :]
            return replace(self, lines=self._with(self.row, 1, (shorter,)), column=self.column - 1)
        if self.row == 0:
            return self
        before = self.lines[self.row - 1]
        return replace(self, lines=self._with(self.row - 1, 2, (before + line,)), row=self.row - 1, column=len(before))

    def move(self, arrow: Arrow, count: int) -> Self:
        """The editor with the cursor moved. Up and down keep the column where the line is long enough; left and right
        go over the ends of lines."""
        if arrow in (Arrow.UP, Arrow.DOWN):
            row = max(0, min(len(self.lines) - 1, self.row + (count if arrow is Arrow.DOWN else -count)))
            return replace(self, row=row, column=min(self.column, len(self.lines[row])))
        row, column = self.row, self.column
        if arrow is Arrow.LEFT:
            column -= count
            while column < 0 and row > 0:
                row -= 1
                column += len(self.lines[row]) + 1
            return replace(self, row=row, column=max(0, column))
        column += count
        while column > len(self.lines[row]) and row < len(self.lines) - 1:
            column -= len(self.lines[row]) + 1
            row += 1
        return replace(self, row=row, column=min(column, len(self.lines[row])))

    def _with(self, row: int, count: int, lines: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return self.lines[:row] + lines + self.lines[row + count :]
