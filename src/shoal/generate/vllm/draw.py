"""One noise function for both of vLLM's logits-processor interfaces: which token each row draws, and its log-prob.

vLLM then does the rest: it takes the argmax of what a processor leaves, and with `logprobs_mode="processed_logits"`
it hands out what is left there, which is the log-prob. So a token and its log-prob travel together, whatever vLLM does
with the request on the way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.devices import is_cuda, to_device
from shoal.generate.decoding import draw_rows
from shoal.generate.sampling import NoiseStream, Words, choose
from shoal.generate.vllm.asked import Asked


class Noise:
    """The noise of one request, on the host. Positions one after the other cost least; any order gives the same."""

    def __init__(self, asked: Asked, vocab: int) -> None:
        self.asked = asked
        self._vocab = vocab
        self._next = asked.first
        self._stream = NoiseStream(asked.seed, asked.sample, vocab, asked.first)

    def at(self, position: int) -> Words:
        if position != self._next:
            self._stream = NoiseStream(self.asked.seed, self.asked.sample, self._vocab, position)
        self._next = position + 1
        return self._stream.next()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits: whose it is, and which of its request's tokens is drawn from it."""

    row: int
    noise: Noise
    position: int

    @property
    def place(self) -> int:
        """Place of the token in the answer, of which the request may be a later part."""
        return self.noise.asked.first + self.position


def draw(logits_BV: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits of which each row of ours has nothing left but the token that it draws, at its log-prob."""
    if not rows:
        return logits_BV
    own = [row.row for row in rows]
    mine_R = to_device(own, torch.int64, logits_BV.device)
    all_ours = own == list(range(len(logits_BV)))
    ours_RV = logits_BV if all_ours else logits_BV[mine_R]
    tokens_R, logp_R = drawn(ours_RV, rows)
    if all_ours:
        logits_BV.fill_(float("-inf"))
    else:
        logits_BV[mine_R] = float("-inf")
    logits_BV[mine_R, tokens_R] = logp_R
    return logits_BV


def drawn(logits_RV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Tokens and log-probs: in one kernel on a CUDA device, in numpy elsewhere."""
    asked = [row.noise.asked for row in rows]
    if any(one.decoding.is_greedy or one.top_p < 1 for one in asked):  # never a worker's: the host is fast enough
        bits = [
            None if one.decoding.is_greedy else row.noise.at(row.place) for one, row in zip(asked, rows, strict=True)
        ]
        return draw_rows(logits_RV, [one.decoding for one in asked], bits)
    if is_cuda(logits_RV.device):
        from shoal.generate.vllm.noise_kernel import draw_on_device

        return draw_on_device(
            logits_RV,
            [one.seed for one in asked],
            [one.sample for one in asked],
            [row.place for row in rows],
            [one.temperature for one in asked],
        )
    scaled_RV = scaled(logits_RV, [one.temperature for one in asked])
    return choose(scaled_RV, [row.noise.at(row.place) for row in rows])


def scaled(logits_RV: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Divided as our own engine divides where all rows have one temperature, as all of a run have."""
    if len(set(temperatures)) == 1:
        return logits_RV / temperatures[0]
    return logits_RV / to_device(temperatures, logits_RV.dtype, logits_RV.device).unsqueeze(1)
