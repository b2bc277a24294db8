"""Small models and random streams for the tests of action models."""

import torch

from shoal.fbam import FrameShape, ModelConfig, TensorStream
from shoal.fbam.frames import CHANNELS, IGNORED
from shoal.fbam.model_config import IntegratorKind

SHAPE = FrameShape(rows=4, columns=6, code_points=11, colours=3)
KINDS: tuple[IntegratorKind, ...] = ("lstm", "transformer", "scan")


def small_config(integrator: IntegratorKind = "lstm", layers: int = 2) -> ModelConfig:
    """Every part that a model can have, as small as it goes."""
    return ModelConfig(
        shape=SHAPE,
        actions=5,
        head_width=8,
        conv_stages=2,
        head_blocks=1,
        head_heads=2,
        integrator=integrator,
        width=12,
        layers=layers,
        heads=3,
    )


def random_stream(length: int, batch: int = 2, seed: int = 0, shape: FrameShape = SHAPE) -> TensorStream:
    """Random frames and actions; about a third of the actions do not count."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *size: int) -> torch.Tensor:
        return torch.randint(high, size, generator=generator)

    cells = (batch, length, shape.rows, shape.columns)
    channels = [draw(shape.code_points, *cells), draw(shape.colours, *cells), draw(shape.colours, *cells)]
    frames = torch.stack(channels, dim=2).to(torch.uint8)
    assert frames.shape[2] == CHANNELS
    targets = draw(5, batch, length)
    targets[:, :-1][draw(3, batch, length - 1) == 0] = IGNORED
    return TensorStream(frames, targets)
