"""LSTM integrator with learned initial state: its depth in nonlinear steps grows with the length of the sequence."""

import torch
from torch import Tensor, nn

from shoal.fbam.integrators.interface import Integrator, State

FORGET_BIAS = 1.0  # gates start open, so that gradients reach far back (Jozefowicz et al., 2015)


class LSTMIntegrator(Integrator):
    """State: hidden and cell state of each layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.h0_L1D = nn.Parameter(torch.zeros(layers, 1, width))
        self.c0_L1D = nn.Parameter(torch.zeros(layers, 1, width))
        for layer in range(layers):  # torch's order of gates: input, forget, cell, output
            getattr(self.lstm, f"bias_ih_l{layer}").data[width : 2 * width].fill_(FORGET_BIAS)

    def initial_state(self, batch: int) -> State:
        return self.h0_L1D.expand(-1, batch, -1).contiguous(), self.c0_L1D.expand(-1, batch, -1).contiguous()

    def forward(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, cell = state
        y_BTD, after = self.lstm(x_BTD, (hidden, cell))
        return y_BTD, after
