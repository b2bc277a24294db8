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
from shoal.devices import CPU, to_numpy
from shoal.errors import ModelError

CHUNK = 32
POINTS = 128
# Values among which a device finds the largest of several chunks at once, in 8 bytes each and some copies of them. A
# CPU takes one chunk after the other, which its cache has room for.
AT_ONCE = 1 << 21
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
                self.close(*chunk_proofs([self._chunk]))
            self._chunk.append(state_D)
        elif (place := position - len(self._built) * CHUNK) >= 0:
            self._chunk[place] = state_D

    def full_before(self, position: int) -> Sequence[Tensor] | None:
        """The states of a full chunk that the state at this position is the first one after; None if there is none."""
        return self._chunk if position == self.tokens and len(self._chunk) == CHUNK else None

    def close(self, proof: bytes) -> None:
        """Takes the proof of the full chunk, whose states go."""
        self._built.append(proof)
        self._chunk = []

    def proof(self, tokens: int | None = None) -> bytes:
        """The proof of all tokens, or of the first ones: an engine may have drawn one that it did not hand out."""
        tokens = self.tokens if tokens is None else tokens
        whole = len(self._built) * CHUNK
        if not (tokens <= self.tokens and (tokens >= whole or tokens % CHUNK == 0)):
            raise ModelError(f"an answer of {tokens} tokens, of which the states of {self.tokens} came; some were lost")
        rest = chunk_proofs([self._chunk[: tokens - whole]]) if tokens > whole else []
        return b"".join([*self._built[: -(-tokens // CHUNK)], *rest])


def chunk_proofs(chunks: Sequence[Sequence[Tensor]]) -> list[bytes]:
    """The proofs of several chunks of one length: a device is asked, and waited for, once for many of them."""
    if not chunks:
        return []
    values = len(chunks[0]) * len(chunks[0][0])
    many = 1 if chunks[0][0].device == CPU else max(1, AT_ONCE // values)
    found: list[bytes] = []
    for first in range(0, len(chunks), many):
        positions_Ck, bits_Ck = top_values(chunks[first : first + many])
        for positions_k, bits_k in to_numpy(torch.stack([positions_Ck, bits_Ck], dim=1)):
            found.append(toploc.build_from_top(positions_k.astype(np.int32), bits_k.astype(np.uint16), values))
    return found


def top_values(chunks: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Positions and bits of the values of largest magnitude in each chunk of bfloat16 states.

    Of equal magnitudes at the last rank those of lowest position are taken, on every device: sorting is by magnitude
    and position at once, so that no two values are equal.
    """
    states = [state_D for chunk in chunks for state_D in chunk]
    bits_CN = torch.stack(states).view(torch.int16).view(len(chunks), -1).long() & 0xFFFF
    count = bits_CN.shape[1]
    backwards_N = torch.arange(_LOW_BITS, _LOW_BITS - count, -1, device=bits_CN.device)
    order_CN = (bits_CN & 0x7FFF) << _BY_MAGNITUDE | backwards_N
    positions_Ck = _LOW_BITS - (order_CN.topk(min(POINTS, count), sorted=False).values & _LOW_BITS)
    return positions_Ck, bits_CN.gather(1, positions_Ck)
