"""Watches a recording in the terminal: the screen before each action, and the action, as fast as one likes."""

import time

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from shoal.errors import FbamError
from shoal.fbam.frames import FrameShape
from shoal.fbam.recording.recording_file import Change, Recording
from shoal.fbam.recording.recording_source import Player
from shoal.fbam.recording.screen import draw_screen, screen_text
from shoal.text import one_line

ROWS, COLUMNS = 24, 80  # of a screen, unless it is told otherwise


def shape_for(console: Console, rows: int | None, columns: int | None) -> FrameShape:
    """The size that was asked for, else the usual one or what the terminal has room for: with a line more than that,
    the line below a frame, which says where one is, would not be seen."""
    room = (console.height - 1, console.width) if console.is_terminal else (ROWS, COLUMNS)
    fitting = [max(1, min(usual, most)) for usual, most in zip((ROWS, COLUMNS), room, strict=True)]
    return FrameShape(rows=rows or fitting[0], columns=columns or fitting[1])


def list_changes(recording: Recording, console: Console) -> None:
    """One row per change, with the number by which it can be watched."""
    number_column = Column("change", no_wrap=True)  # the last to be cut where a terminal is narrow
    table = Table(number_column, "commit", "frames", "file", title=f"{recording.frames:,} frames", title_justify="left")
    for number, change in enumerate(recording.changes):
        table.add_row(str(number), change.commit[:12], f"{len(change.actions):,}", Text(one_line(change.path)))
    console.print(table)


def find_change(recording: Recording, number: int) -> Change:
    if not 0 <= number < len(recording.changes):
        raise FbamError(f"change {number}: the recording has 0 .. {len(recording.changes) - 1}")
    return recording.changes[number]


def print_frame(recording: Recording, number: int, at: int, shape: FrameShape, console: Console) -> None:
    """One frame of a change; the one after the last action shows the text that it ends with."""
    change = find_change(recording, number)
    if not 0 <= at <= len(change.actions):
        raise FbamError(f"change {number}: frame {at}: it has 0 .. {len(change.actions)}")
    (editor,) = Player(change, recording.table).editors(at, at + 1)
    console.print(_picture(draw_screen(editor, change.path, shape), _caption(recording, change, at)))


def play(recording: Recording, number: int, speed: float, shape: FrameShape, console: Console) -> None:
    """All frames of a change, `speed` per second; Ctrl-C ends it."""
    change = find_change(recording, number)
    editors = Player(change, recording.table).editors(0, len(change.actions) + 1)
    with Live(console=console, auto_refresh=False) as live:
        for at, editor in enumerate(editors):
            picture = _picture(draw_screen(editor, change.path, shape), _caption(recording, change, at))
            live.update(picture, refresh=True)
            time.sleep(1 / speed)


def _caption(recording: Recording, change: Change, at: int) -> str:
    action = recording.table.describe(change.actions[at]) if at < len(change.actions) else "end"
    return f"{at} of {len(change.actions)}  {action}  {change.commit[:12]}"


def _picture(cells: np.ndarray, caption: str) -> RenderableType:
    """A frame in its colours. Cells come from strangers: what could be an escape is shown as a dot."""
    rows: list[Text] = []
    for row, text in enumerate(screen_text(cells)):
        line = Text(no_wrap=True, overflow="crop")
        for char, front, back in zip(text, cells[1, row].tolist(), cells[2, row].tolist(), strict=True):
            line.append(char, style=f"color({front}) on color({back})")
        rows.append(line)
    return Group(*rows, Text(caption, style="dim", no_wrap=True, overflow="ellipsis"))
