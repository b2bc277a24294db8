"""A training run on disk: its settings, its newest checkpoint, its metrics and their curves.

A checkpoint replaces the one before in one rename: after a SIGKILL at any moment there is one to go on from.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.errors import FbamError
from shoal.fbam.recording import RecordingSource, read_recording
from shoal.fbam.recording.recording_source import Part
from shoal.fbam.tasks import Source, build_task
from shoal.fbam.training.settings import TrainSettings, parse_settings
from shoal.fbam.training.trainer import Trainer
from shoal.files import read_regular, sha256_file, whole_file, write_whole


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Names of a run's files."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def exists(self) -> bool:
        return self.settings.is_file()

    def create(self, settings: TrainSettings) -> None:
        """Writes the settings of a new run; FileExistsError if there is one already."""
        write_whole(self.settings, settings.model_dump_json(indent=1).encode(), once=True)

    def read_settings(self) -> TrainSettings:
        try:
            return parse_settings(read_regular(self.settings), f"run {self.path}: settings.json")
        except OSError as error:
            raise FbamError(
                f"run {self.path}: no settings.json there; start a run with: shoal fbam train {self.path} --task NAME"
            ) from error

    def save(self, trainer: Trainer) -> None:
        with whole_file(self.checkpoint) as staging, staging.open("xb") as file:
            torch.save(trainer.state(), file)

    def restore(self, trainer: Trainer) -> None:
        """Puts the newest checkpoint into a trainer; a run without one begins at step 0."""
        if not self.checkpoint.is_file():
            return
        try:
            trainer.restore(torch.load(self.checkpoint, map_location="cpu", weights_only=True))
        except Exception as error:  # of torch's unpickler and of every part of the state; files can be damaged anywhere
            raise FbamError(
                f"run {self.path}: checkpoint.pt is damaged, or another run's; remove it to begin at step 0"
            ) from error


def open_source(settings: TrainSettings, part: Part = "train") -> Source:
    """What a run is trained or evaluated on. A recording that has changed since the start is refused."""
    if settings.task is not None:
        return build_task(settings.task)
    assert settings.recording is not None, "settings have a task or a recording"
    recording = read_recording(settings.recording)
    if sha256_file(settings.recording) != settings.recording_sha256:
        raise FbamError(f"recording {settings.recording}: it has changed since the run began; start a new run")
    return RecordingSource(recording, settings.model.shape, part)


def check_source(settings: TrainSettings) -> None:
    """Draws one of the longest sequences, which fails if there is none."""
    open_source(settings).draw(np.random.default_rng(settings.seed), 1, settings.max_length)
