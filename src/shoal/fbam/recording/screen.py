"""Draws an editor as a frame: a function of the editor alone, so frames need not be stored."""

import numpy as np

from shoal.fbam.frames import CHANNELS, FrameShape
from shoal.fbam.recording.editor import Editor

BLACK, BLUE, WHITE, GREY = 0, 4, 7, 8
BEYOND_END = ord("~")
MIN_ROWS_WITH_STATUS = 3


def draw_screen(editor: Editor, title: str, shape: FrameShape) -> np.ndarray:
    """CHANNELS x rows x columns of uint8: the text around the cursor, and a status line if there is room for one."""
    cells = np.zeros((CHANNELS, shape.rows, shape.columns), np.uint8)
    cells[0], cells[1], cells[2] = ord(" "), WHITE, BLACK
    body = shape.rows - 1 if shape.rows >= MIN_ROWS_WITH_STATUS else shape.rows
    top = max(0, min(editor.row - body // 2, len(editor.lines) - body))
    left = max(0, editor.column - shape.columns * 3 // 4)
    for row in range(body):
        if top + row < len(editor.lines):
            shown = editor.lines[top + row][left : left + shape.columns]
            cells[0, row, : len(shown)] = np.frombuffer(shown, np.uint8)
        else:
            cells[:2, row, 0] = BEYOND_END, GREY
    cells[1:, editor.row - top, editor.column - left] = BLACK, WHITE
    if body < shape.rows:
        _draw_status(cells[:, -1], title, editor)
    return cells


def _draw_status(cells_CW: np.ndarray, title: str, editor: Editor) -> None:
    place = f" {editor.row + 1}:{editor.column + 1}"
    width = cells_CW.shape[1]
    name = title.encode()[-max(0, width - len(place)) :] if len(place) < width else b""
    status = (name + place.encode())[:width]
    cells_CW[0, : len(status)] = np.frombuffer(status, np.uint8)
    cells_CW[1], cells_CW[2] = WHITE, BLUE


def screen_text(cells: np.ndarray) -> list[str]:
    """The rows of a frame as text that any terminal shows without obeying it: no escapes, no control characters."""
    return ["".join(_shown(point) for point in row) for row in cells[0].tolist()]


def _shown(point: int) -> str:
    char = chr(point)
    return char if char.isprintable() else "→" if char == "\t" else "·"
