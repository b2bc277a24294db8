"""TOPLOC proofs built while an answer is generated: no state is kept longer than a chunk of 32 tokens.

States wait on the device they were computed on. When a chunk ends, its 128 values of largest magnitude are found
there, and 128 pairs of position and bits go to the host, where the chunk's polynomial is built from them. The bytes are
those of `toploc.build` on all states at once.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal import toploc
from shoal.devices import to_numpy
from shoal.errors import ModelError

CHUNK = 32
POINTS = 128
# A value's magnitude in front of its position: of equal magnitudes the one of lowest position is larger.
_BY_MAGNITUDE = 32
_LOW_BITS = (1 << _BY_MAGNITUDE) - 1


class ProofBuilder:
    """The proof of one answer, token after token.

    A full chunk is kept until the next one begins: an engine that computes a token's state again, as one that was
    interrupted does, replaces the state that it gave before.
    """

    def __init__(self) -> None:
        self._chunk: list[Tensor] = []
        self._built: list[bytes] = []

    @property
    def held(self) -> int:
        """How many states it holds: at most one chunk."""
        return len(self._chunk)

    @property
    def tokens(self) -> int:
        """How many tokens it has states of, held or not."""
        return len(self._built) * CHUNK + len(self._chunk)

    def add(self, state_D: Tensor) -> None:
        """Takes the state, in bfloat16, that the next token was drawn from."""
        self.put(self.tokens, state_D)

    def put(self, position: int, state_D: Tensor) -> None:
        """Takes the state that the token at this position was drawn from: the next one, or one that came before."""
        if position > self.tokens:
            raise ModelError(f"the state of token {position} came after that of token {self.tokens - 1}; one was lost")
        if position == self.tokens:
            if len(self._chunk) == CHUNK:
                self._built.append(chunk_proof(self._chunk))
                self._chunk.clear()
            self._chunk.append(state_D)
        elif (place := position - len(self._built) * CHUNK) >= 0:
            self._chunk[place] = state_D

    def proof(self, tokens: int | None = None) -> bytes:
        """The proof of all tokens, or of the first ones: an engine may have drawn one that it did not hand out."""
        tokens = self.tokens if tokens is None else tokens
        whole = len(self._built) * CHUNK
        if not (tokens <= self.tokens and (tokens >= whole or tokens % CHUNK == 0)):
            raise ModelError(f"an answer of {tokens} tokens, of which the states of {self.tokens} came; some were lost")
        rest = [chunk_proof(self._chunk[: tokens - whole])] if tokens > whole else []
        return b"".join([*self._built[: -(-tokens // CHUNK)], *rest])


def chunk_proof(states: Sequence[Tensor]) -> bytes:
    """The proof of the states of one chunk."""
    positions_k, bits_k, count = top_values(states)
    pairs_2k = to_numpy(torch.stack([positions_k, bits_k]))
    return toploc.build_from_top(pairs_2k[0].astype(np.int32), pairs_2k[1].astype(np.uint16), count)


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
