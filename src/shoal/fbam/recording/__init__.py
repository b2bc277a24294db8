"""Recordings: a git history as keystrokes in an editor, replayed byte for byte; frames are drawn when they are read."""

from shoal.fbam.recording.recorder import RecordOptions, RecordReport, record_repository
from shoal.fbam.recording.recording_file import Change, Recording, read_recording, replays
from shoal.fbam.recording.recording_source import Player, RecordingSource

__all__ = [
    "Change",
    "Player",
    "RecordOptions",
    "RecordReport",
    "Recording",
    "RecordingSource",
    "read_recording",
    "record_repository",
    "replays",
]
