"""Shape of an action model, and the published one, whose parameter count is known exactly."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.fbam.frames import FrameShape

IntegratorKind = Literal["lstm", "transformer", "scan"]
Readout = Literal["mean", "last"]


class ModelConfig(BaseModel):
    """All that decides a model's parameters. The head sees one frame; the integrator sees time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: FrameShape
    actions: int = Field(ge=2, description="Size of the action vocabulary.")
    head_width: int = Field(default=64, ge=1)
    conv_stages: int = Field(default=0, ge=0, le=4, description="Each halves rows and columns, down to 1.")
    head_blocks: int = Field(default=0, ge=0, description="Full-attention blocks over the cells that are left.")
    head_heads: int = Field(default=1, ge=1)
    readout: Readout = Field(default="mean", description="How cells become one embedding: their mean or the last.")
    integrator: IntegratorKind = "lstm"
    width: int = Field(default=128, ge=1, description="Width of the integrator.")
    layers: int = Field(default=1, ge=1)
    heads: int = Field(default=4, ge=1, description="Attention heads of the transformer integrator.")

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> Self:
        if self.head_blocks and self.head_width % self.head_heads:
            raise ValueError(f"head_width {self.head_width} is not a multiple of head_heads {self.head_heads}")
        if self.integrator == "transformer" and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


PUBLISHED_PARAMETERS = 94_030_848
# The count is published; this is a composition that has it: embeddings of 256 code points, 16 + 16 colours and 48 x 160
# positions, 2 convolutions, 3 blocks, 9 norms, an LSTM with both biases, h0, c0, and 20,352 actions; no other biases.
PUBLISHED = ModelConfig(
    shape=FrameShape(rows=48, columns=160),
    actions=20_352,
    head_width=1024,
    conv_stages=2,
    head_blocks=3,
    head_heads=8,
    readout="last",
    integrator="lstm",
    width=1024,
)
