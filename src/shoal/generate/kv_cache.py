"""KV cache: keys and values of the running sequences, one row per slot, written in place, never copied as a whole.

Running sequences always fill slots 0 .. n-1. When one ends, the last one moves into its slot: one row is copied for
each finished sequence, instead of the whole cache for each token.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.devices import CPU
from shoal.models.attention import Recording


class SlotCache:
    """Room for `slots` sequences of up to `max_len` tokens, taken from memory as the sequences grow into it."""

    def __init__(self, slots: int, max_len: int) -> None:
        self.slots = slots
        self.max_len = max_len
        self._kv: Tensor | None = None  # layer, key or value, slot, head, position, head size

    def store(self, prefill: Recording, begin: int, n: int, first: int, count: int) -> None:
        """Copies the keys and values of one prefilled prompt, `n` tokens from `begin`, into `count` slots."""
        if self._kv is None:
            sample = prefill.keys_hTD[0]
            heads, _, size = sample.shape
            shape = (len(prefill.keys_hTD), 2, self.slots, heads, self.max_len, size)
            self._kv = _zeros(shape, sample.dtype, sample.device)
        for layer, keys_hTD in prefill.keys_hTD.items():
            self._kv[layer, 0, first : first + count, :, :n] = keys_hTD[:, begin : begin + n]
            self._kv[layer, 1, first : first + count, :, :n] = prefill.values_hTD[layer][:, begin : begin + n]

    def move(self, source: int, target: int, length: int) -> None:
        """Copies one sequence of `length` tokens into another slot."""
        assert self._kv is not None
        self._kv[:, :, target, :, :length] = self._kv[:, :, source, :, :length]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        assert self._kv is not None
        return self._kv[layer, 0], self._kv[layer, 1]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on the host take memory when they are first written, which those of `torch.zeros` do at once.

    Places behind a sequence's end are masked, but must hold numbers all the same: the mask's zero times NaN is NaN.
    """
    if device != CPU:
        return torch.zeros(shape, dtype=dtype, device=device)
    room = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(room).view(dtype).view(shape)


class NextToken:
    """One new token for each running slot; it sees its own sequence and itself."""

    def __init__(self, cache: SlotCache, lengths: list[int], device: torch.device = CPU) -> None:
        self._cache = cache
        self._n = len(lengths)
        self.longest = max(lengths) + 1
        self._rows_B = torch.arange(self._n, device=device)
        self._at_B = torch.tensor(lengths, device=device)
        self.positions_B1 = self._at_B.unsqueeze(1)
        seen_BL = torch.zeros(self._n, self.longest, device=device)
        unseen_BL = torch.arange(self.longest, device=device) > self.positions_B1
        self._mask_B11L = seen_BL.masked_fill(unseen_BL, float("-inf"))[:, None, None, :]

    def attend(self, layer: int, q_BH1D: Tensor, k_Bh1D: Tensor, v_Bh1D: Tensor, scale: float) -> Tensor:
        keys, values = self._cache.layer(layer)
        keys[self._rows_B, :, self._at_B] = k_Bh1D[:, :, 0]
        values[self._rows_B, :, self._at_B] = v_Bh1D[:, :, 0]
        batch, heads, _, size = q_BH1D.shape
        # Query heads that share a key head stand as rows of one query: no key or value is repeated for them.
        q_BhGD = q_BH1D.reshape(batch, k_Bh1D.shape[1], -1, size)
        out_BhGD = F.scaled_dot_product_attention(
            q_BhGD,
            keys[: self._n, :, : self.longest],
            values[: self._n, :, : self.longest],
            attn_mask=self._mask_B11L.to(q_BhGD.dtype),
            scale=scale,
        )
        return out_BhGD.reshape(batch, 1, heads, size)
