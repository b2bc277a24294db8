"""Causal transformer integrator: a fixed number of layers, whatever the length of the sequence.

Positions are distances (linear biases, ALiBi, Press et al., 2022), which need no table and extend to lengths that were
not trained. Its state is the cache of keys and values, so its memory grows with length. The cache begins with a learned
key and value per layer, as the LSTM begins with a learned state. Without them frames that are all alike could not be
counted: attention is a mean, whatever the distances, and the mean of equal values is one of them.
"""

import torch
from torch import Tensor, nn

from shoal.fbam.attention import Block
from shoal.fbam.integrators.interface import Integrator, State


class TransformerIntegrator(Integrator):
    """State: keys and values of each layer, one per frame so far behind the learned one."""

    slopes_H11: Tensor

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.start_SHD = nn.Parameter(torch.randn(2 * layers, heads, self.head_width))
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes_H11", slopes.view(heads, 1, 1), persistent=False)

    def initial_state(self, batch: int) -> State:
        return tuple(start_HD[None, :, None].expand(batch, -1, -1, -1) for start_HD in self.start_SHD)

    def forward(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        bias_HTM = self._distance_bias(x_BTD.shape[1], state[0].shape[2])
        after: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x_BTD, keys_values = block(x_BTD, (state[2 * number], state[2 * number + 1]), bias_HTM)
            after += keys_values
        return self.norm(x_BTD), tuple(after)

    def _distance_bias(self, frames: int, past: int) -> Tensor:
        """-slope x distance for earlier frames, -inf for later ones."""
        now = torch.arange(past, past + frames, device=self.slopes_H11.device)[:, None]
        distance_TM = now - torch.arange(past + frames, device=now.device)[None]
        bias_HTM = -self.slopes_H11 * distance_TM
        return bias_HTM.masked_fill(distance_TM < 0, -torch.inf)
