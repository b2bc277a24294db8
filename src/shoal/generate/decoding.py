"""Decoding settings of a single request, where they are not the run's own: temperature and nucleus (top-p) sampling.

A row's token depends on its logits, its settings and its noise alone: rows of a batch with different settings are drawn
as if each were alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.generate.sampling import Words, choose, greedy


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the tokens of a request are drawn; temperature 0 takes the likeliest token and needs no noise."""

    temperature: float
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability can be drawn."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def draw_rows(logits_BV: Tensor, decodings: Sequence[Decoding], bits: Sequence[Words | None]) -> tuple[Tensor, Tensor]:
    """The token of each row and its log-prob in the distribution that was drawn from, with settings per row."""
    tokens_B = torch.empty(len(logits_BV), dtype=torch.int64, device=logits_BV.device)
    logp_B = torch.empty(len(logits_BV), dtype=torch.float32, device=logits_BV.device)
    for decoding in dict.fromkeys(decodings):
        rows = [row for row, own in enumerate(decodings) if own == decoding]
        part_RV = logits_BV[rows].float()
        if decoding.is_greedy:
            tokens_B[rows], logp_B[rows] = greedy(part_RV)
        else:
            noise = [own for row in rows if (own := bits[row]) is not None]
            tokens_B[rows], logp_B[rows] = choose(nucleus(part_RV / decoding.temperature, decoding.top_p), noise)
    return tokens_B, logp_B


def nucleus(scaled_BV: Tensor, top_p: float) -> Tensor:
    """Logits of which the smallest set of likeliest tokens with probability `top_p` is left: at least one per row."""
    if top_p >= 1:
        return scaled_BV
    sorted_BV, order_BV = scaled_BV.sort(dim=1, descending=True, stable=True)
    before_BV = sorted_BV.softmax(dim=1).cumsum(dim=1).roll(1, dims=1)
    before_BV[:, 0] = 0.0
    outside_BV = torch.zeros_like(scaled_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= top_p)
    outside_BV.scatter_(1, order_BV[:, :1], False)  # the likeliest stays, whatever top_p is
    return scaled_BV.masked_fill(outside_BV, float("-inf"))
