"""Settings of one training run: all that decides its losses, so that a run which goes on is the run that began."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.errors import FbamError
from shoal.fbam.model_config import ModelConfig

Method = Literal["exact", "truncated"]
DECAY_SHARE = 0.2  # the learning rate falls to 0 over this share of the steps, at the end


class TrainSettings(BaseModel):
    """What is trained, on what, and how. Stored with the run; no field can change after its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelConfig
    task: str | None = Field(default=None, description="A task of shoal.fbam.tasks.")
    recording: Path | None = Field(default=None, description="A file that `shoal fbam record` wrote.")
    recording_sha256: str | None = None
    steps: int = Field(default=3000, ge=1)
    batch: int = Field(default=128, ge=1)
    min_length: int = Field(default=1, ge=1)
    max_length: int = Field(default=16, ge=1, description="Lengths are drawn from min_length .. max_length.")
    curriculum_steps: int = Field(default=0, ge=0, description="Steps in which max_length grows from min_length.")
    chunk: int = Field(default=64, ge=1, description="Frames whose activations are in memory at once.")
    method: Method = Field(default="exact", description="Exact streaming gradient, or truncated at chunks.")
    lr: float = Field(default=3e-3, gt=0)
    warmup_steps: int = Field(default=100, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, gt=0, description="Largest norm of the gradient.")
    seed: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=200, ge=1)

    @model_validator(mode="after")
    def _one_source_and_lengths_in_order(self) -> Self:
        if (self.task is None) == (self.recording is None):
            raise ValueError("give a task or a recording, one of the two")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self

    def longest_at(self, step: int) -> int:
        """The longest length of a step: the curriculum lets it grow steadily."""
        if step >= self.curriculum_steps:
            return self.max_length
        return self.min_length + (self.max_length - self.min_length) * step // self.curriculum_steps

    def lr_at(self, step: int) -> float:
        """Linear warm-up, then constant, then linear to 0 over the last steps."""
        rising = (step + 1) / max(1, self.warmup_steps)
        falling = (self.steps - step) / max(1.0, self.steps * DECAY_SHARE)
        return self.lr * min(1.0, rising, falling)


def parse_settings(text: str | bytes, what: str) -> TrainSettings:
    """Settings from JSON; an error names the field, its value and the rule."""
    try:
        return TrainSettings.model_validate_json(text)
    except ValidationError as error:
        raise FbamError(f"{what}: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where} = {first['input']!r}: {first['msg']}" if where else str(first["msg"])
