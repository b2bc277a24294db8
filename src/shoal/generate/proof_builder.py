"""TOPLOC proofs built while an answer is generated: no state is kept longer than a chunk of 32 tokens.

States wait on the device they were computed on. Once a chunk is full, its 128 values of largest magnitude are found
there, and 128 pairs of position and bits go to the host, where the chunk's polynomial is built from them. The bytes are
those of `toploc.build` on all states at once.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal import toploc
from shoal.devices import to_numpy

CHUNK = 32
POINTS = 128
# A value's magnitude in front of its position: of equal magnitudes the one of lowest position is larger.
_BY_MAGNITUDE = 32
_LOW_BITS = (1 << _BY_MAGNITUDE) - 1


class ProofBuilder:
    """The proof of one answer, token after token."""

    def __init__(self) -> None:
        self._chunk: list[Tensor] = []
        self._built: list[bytes] = []

    @property
    def held(self) -> int:
        """How many states it holds."""
        return len(self._chunk)

    def add(self, state_D: Tensor) -> None:
        """Takes the state, in bfloat16, that the next token was drawn from."""
        self._chunk.append(state_D)
        if len(self._chunk) == CHUNK:
            self._reduce()

    def proof(self) -> bytes:
        """The proof of all states so far; the last chunk may be a short one."""
        if self._chunk:
            self._reduce()
        return b"".join(self._built)

    def _reduce(self) -> None:
        positions_k, bits_k, count = top_values(self._chunk)
        pairs_2k = to_numpy(torch.stack([positions_k, bits_k]))
        self._built.append(toploc.build_from_top(pairs_2k[0].astype(np.int32), pairs_2k[1].astype(np.uint16), count))
        self._chunk.clear()


def top_values(states: Sequence[Tensor]) -> tuple[Tensor, Tensor, int]:
    """Positions and bits of the values of largest magnitude in a chunk of bfloat16 states, and how many values it has.

    Of equal magnitudes at the last rank those of lowest position are taken, on every device: sorting is by magnitude
    and position at once, so that no two values are equal.
    """
    bits_N = torch.stack(list(states)).view(torch.int16).flatten().long() & 0xFFFF
    backwards_N = torch.arange(_LOW_BITS, _LOW_BITS - len(bits_N), -1, device=bits_N.device)
    order_N = (bits_N & 0x7FFF) << _BY_MAGNITUDE | backwards_N
    positions_k = _LOW_BITS - (order_N.topk(min(POINTS, len(bits_N)), sorted=False).values & _LOW_BITS)
    return positions_k, bits_N[positions_k], len(bits_N)
