"""A recording as a source of streams: frames are drawn when they are read, from the text before and the actions."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

import numpy as np
import torch

from shoal.errors import FbamError
from shoal.fbam.frames import CHANNELS, FrameShape
from shoal.fbam.recording.actions import ActionTable
from shoal.fbam.recording.editor import Editor
from shoal.fbam.recording.recording_file import Change, Recording, gives
from shoal.fbam.recording.screen import draw_screen
from shoal.text import one_line

Part = Literal["train", "heldout"]
HELDOUT_SHARE = 0.1  # of the frames, at the end of the history
SNAPSHOT_EVERY = 32  # actions, or twice, four times .. as many; between two snapshots an editor is replayed
SNAPSHOT_BYTES = 1 << 20  # of the snapshots of one change
POINTER_BYTES = 8  # of a line in an editor
PLAYERS = 256  # changes whose snapshots are kept


class Player:
    """The editor before each action of a change, in any order. A change that does not replay is refused.

    The whole change is played at once, and snapshots of it are kept, in bounded memory: where they would need more,
    every second one is dropped.
    """

    def __init__(self, change: Change, table: ActionTable) -> None:
        self._change, self._table = change, table
        self._every = SNAPSHOT_EVERY
        editor = Editor.opened(change.before.encode())
        self._snapshots, size = [editor], _size(editor)
        for begin in range(0, len(change.actions), SNAPSHOT_EVERY):
            editor = self._after(editor, begin, begin + SNAPSHOT_EVERY)
            if (begin + SNAPSHOT_EVERY) % self._every == 0:
                self._snapshots.append(editor)
                size += _size(editor)
            while size > SNAPSHOT_BYTES and len(self._snapshots) > 1:
                self._snapshots, self._every = self._snapshots[::2], 2 * self._every
                size = self.snapshot_bytes
        if not gives(change, editor.text()):
            raise FbamError(
                f"recording: the change of {one_line(change.path)} in commit {change.commit[:12]} does not give the "
                "text of its after_sha256; record it again"
            )

    @property
    def snapshot_bytes(self) -> int:
        """Memory of the snapshots, as if they shared no line; they share most."""
        return sum(map(_size, self._snapshots))

    def editors(self, begin: int, end: int) -> Iterator[Editor]:
        """Editors before actions begin .. end - 1; one more than there are actions gives the end."""
        kept = begin // self._every
        editor = self._after(self._snapshots[kept], kept * self._every, begin)
        for at in range(begin, end):
            yield editor
            editor = self._after(editor, at, at + 1)

    def _after(self, editor: Editor, begin: int, end: int) -> Editor:
        for action in self._change.actions[begin:end]:
            editor = self._table.apply(editor, action)
        return editor


def _size(editor: Editor) -> int:
    return sum(map(len, editor.lines)) + POINTER_BYTES * len(editor.lines)


class RecordingSource:
    """Sequences of one part of a recording: the last tenth of its frames is held out."""

    def __init__(self, recording: Recording, shape: FrameShape, part: Part = "train") -> None:
        self.shape, self.table, self.part = shape, recording.table, part
        starts = [0, *accumulate(len(change.actions) for change in recording.changes)]
        cut = bisect_right(starts, starts[-1] * (1 - HELDOUT_SHARE)) - 1
        self.changes: Sequence[Change] = recording.changes[:cut] if part == "train" else recording.changes[cut:]
        self.starts = [0, *accumulate(len(change.actions) for change in self.changes)]
        self._player = lru_cache(PLAYERS)(lambda number: Player(self.changes[number], self.table))

    @property
    def actions(self) -> int:
        return self.table.count

    @property
    def frames(self) -> int:
        return self.starts[-1]

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> "RecordingStream":
        """Stretches of the timeline, each from a random frame on; they run over the ends of changes."""
        if self.frames < length:
            raise FbamError(
                f"recording: its {self.part} part has {self.frames} frames, sequences need {length}; "
                "record more commits or train on shorter sequences"
            )
        begins = rng.integers(self.frames - length + 1, size=batch)
        return RecordingStream(self, tuple(map(int, begins)), length)

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The parts of changes that make up frames begin .. end - 1: change, first action, action behind the last."""
        number = bisect_right(self.starts, begin) - 1
        while begin < end:
            first, behind = self.starts[number], min(end, self.starts[number + 1])
            yield number, begin - first, behind - first
            begin, number = behind, number + 1

    def draw_frames(self, begin: int, end: int) -> np.ndarray:
        """Frames of the timeline, each before its action."""
        cells = np.empty((end - begin, CHANNELS, self.shape.rows, self.shape.columns), np.uint8)
        at = 0
        for number, first, behind in self.spans(begin, end):
            for editor in self._player(number).editors(first, behind):
                cells[at] = draw_screen(editor, self.changes[number].path, self.shape)
                at += 1
        return cells

    def read_actions(self, begin: int, end: int) -> list[int]:
        spans = self.spans(begin, end)
        return [action for number, first, behind in spans for action in self.changes[number].actions[first:behind]]


@dataclass(frozen=True, slots=True)
class RecordingStream:
    """Stretches of a recording side by side."""

    source: RecordingSource
    begins: tuple[int, ...]
    length: int

    @property
    def batch(self) -> int:
        return len(self.begins)

    def frames(self, begin: int, end: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.source.draw_frames(at + begin, at + end) for at in self.begins]))

    def targets(self, begin: int, end: int) -> torch.Tensor:
        return torch.tensor([self.source.read_actions(at + begin, at + end) for at in self.begins])
