"""Gated linear scan: h[t] = a[t] h[t-1] + b[t] with gates computed from the input alone.

The recurrence is linear and diagonal, so all steps can be computed in log2(T) parallel rounds. That is what makes it
fast, and what keeps its depth in nonlinear steps at the number of layers.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from shoal.fbam.attention import FeedForward
from shoal.fbam.integrators.interface import Integrator, State


class ScanIntegrator(Integrator):
    """State: h of each layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(ScanLayer(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def initial_state(self, batch: int) -> State:
        return (self.norm.weight.new_zeros(batch, self.width),) * len(self.layers)

    def forward(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        after: list[Tensor] = []
        for layer, h_BD in zip(self.layers, state, strict=True):
            x_BTD, h_BD = layer(x_BTD, h_BD)
            after.append(h_BD)
        return self.norm(x_BTD), tuple(after)


class ScanLayer(nn.Module):
    """A gated scan and a feed-forward layer, each added to what it read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.to_decay = nn.Linear(width, width)
        self.to_value_and_gate = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.feed_forward = FeedForward(width)
        nn.init.uniform_(self.to_decay.bias, 0.0, 5.0)  # half-lives between 1 and 100 frames at the start

    def forward(self, x_BTD: Tensor, h_BD: Tensor) -> tuple[Tensor, Tensor]:
        read_BTD = self.norm(x_BTD)
        decay_BTD = torch.sigmoid(self.to_decay(read_BTD))
        value_BTD, gate_BTD = self.to_value_and_gate(read_BTD).chunk(2, -1)
        h_BTD = linear_scan(decay_BTD, (1 - decay_BTD) * value_BTD, h_BD)
        return self.feed_forward(x_BTD + self.to_out(h_BTD * gelu(gate_BTD))), h_BTD[:, -1]


def linear_scan(decay_BTD: Tensor, inflow_BTD: Tensor, h_BD: Tensor) -> Tensor:
    """All h[t] = decay[t] h[t-1] + inflow[t] from h[-1], in log2(T) rounds (Hillis and Steele, 1986)."""
    a, b = decay_BTD, torch.cat([inflow_BTD[:, :1] + decay_BTD[:, :1] * h_BD[:, None], inflow_BTD[:, 1:]], dim=1)
    step = 1
    while step < b.shape[1]:
        b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], dim=1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], dim=1)
        step *= 2
    return b
