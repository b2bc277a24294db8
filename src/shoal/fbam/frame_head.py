"""Frame head: one embedding per screen, computed from that screen alone.

Frames do not see each other here, so heads of different frames can be computed in any order, chunk by chunk, or on
different machines; only the integrator is sequential.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu

from shoal.errors import FbamError
from shoal.fbam.attention import Block
from shoal.fbam.frames import CHANNELS, FrameShape
from shoal.fbam.model_config import ModelConfig

# Standard deviation of colours and positions at the start. Most cells share them: as large as code points, they would
# drown what differs from frame to frame.
FAINT = 0.02


class FrameHead(nn.Module):
    """Cells and positions are embedded, pooled by convolutions, mixed by attention and read out as one vector."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape, width = config.shape, config.head_width
        self.shape = shape
        self.readout = config.readout
        self.code_point = nn.Embedding(shape.code_points, width)
        self.foreground = nn.Embedding(shape.colours, width)
        self.background = nn.Embedding(shape.colours, width)
        self.position_RWD = nn.Parameter(torch.randn(shape.rows, shape.columns, width) * FAINT)
        for colours in (self.foreground, self.background):
            nn.init.normal_(colours.weight, std=FAINT)
        self.stages = nn.ModuleList(ConvolutionStage(width) for _ in range(config.conv_stages))
        self.blocks = nn.ModuleList(Block(width, config.head_heads) for _ in range(config.head_blocks))
        self.norm = nn.RMSNorm(width)

    def forward(self, frames_NCRW: Tensor) -> Tensor:
        """Embeddings, frames x width."""
        check_frames(frames_NCRW, self.shape)
        point, front, back = frames_NCRW.int().unbind(1)
        x_NRWD = self.code_point(point) + self.foreground(front) + self.background(back) + self.position_RWD
        for stage in self.stages:
            x_NRWD = stage(x_NRWD)
        x_NPD: Tensor = x_NRWD.flatten(1, 2)
        for block in self.blocks:
            x_NPD, _ = block(x_NPD)
        # After the mean, not before it: the mean of cells of unit size is the fainter the more they are.
        x_ND: Tensor = self.norm(x_NPD.mean(1) if self.readout == "mean" else x_NPD[:, -1])
        return x_ND


class ConvolutionStage(nn.Module):
    """RMSNorm, 3 x 3 convolution with dilation 2, GELU, mean over 2 x 2 cells. A side of one cell stays one cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.convolution = nn.Conv2d(width, width, 3, padding=2, dilation=2, bias=False)

    def forward(self, x_NRWD: Tensor) -> Tensor:
        x_NDRW = gelu(self.convolution(self.norm(x_NRWD).permute(0, 3, 1, 2)))
        window = [min(2, side) for side in x_NDRW.shape[2:]]
        # An odd side keeps its last cells: their mean is taken over those that exist.
        pooled = avg_pool2d(x_NDRW, window, ceil_mode=True, count_include_pad=False)
        return pooled.permute(0, 2, 3, 1)


def check_frames(frames_NCRW: Tensor, shape: FrameShape) -> None:
    """Refuses frames of another size; a value that no cell can have is refused by the embedding that it indexes."""
    expected = (CHANNELS, shape.rows, shape.columns)
    if tuple(frames_NCRW.shape[1:]) != expected or frames_NCRW.dtype != torch.uint8:
        raise FbamError(
            f"frames of {tuple(frames_NCRW.shape[1:])} {frames_NCRW.dtype}: this model reads {expected} torch.uint8 "
            "(code point, foreground and background of each cell); draw them with the model's shape"
        )
