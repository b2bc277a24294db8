"""Noise kinds: which generator the sampling noise of a run comes from, under a name that is pinned to what produces it.

"philox4x64" is the specification in `sampling`. The other kinds are those of samplers that we do not write: a server
that nobody changed then generates tokens that a validator can redraw. vLLM has changed its generator several times in
a year, so each kind names the releases that have it, and a worker compares them with its server's.

Every kind gives 32 random bits per token to the same `sampling.gumbel`, so choosing tokens and judging them is one code
path. vLLM takes -log(-log(1 - u)) where we take -log(-log(u)): its words are inverted here.
"""

import hashlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.config import NoiseName
from shoal.generate.sampling import TWO32, NoiseStream, Words

# Releases of vLLM whose V2 sampler (v1/worker/gpu/sample/gumbel.py) has the kind; `VLLM_USE_V2_MODEL_RUNNER=1`.
VLLM_RELEASES: dict[NoiseName, tuple[str, ...]] = {"vllm-0.32": ("0.32",)}
DOMAIN = b"shoal vllm seed 1"
# vLLM takes the logarithm of no less than this where u is above SERIES; below it, a series that is exact for float32.
FLOOR, SERIES = np.float32(2**-24), np.float32(0.25)

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_FIVE, _ADDED, _LENGTH = np.uint32(5), np.uint32(0xE6546B64), np.uint32(16)
_Uints = npt.NDArray[np.uint32]


class Noise(Protocol):
    """The noise of one sample, position after position."""

    def next(self) -> Words: ...


def open_noise(kind: NoiseName, seed: int, sample: int, vocab: int, prompt: int, position: int = 0) -> Noise:
    """The noise of a sample under a lease's seed, from a position of its answer on.

    `prompt` is the number of tokens before that position, those of the answer among them.
    """
    if kind == "philox4x64":
        return NoiseStream(seed, sample, vocab, position)
    # The position of a draw is that of the token it is drawn after: the prompt's last, at first.
    return VllmNoise(server_seed(seed, sample), vocab, prompt - 1)


def server_seed(seed: int, sample: int) -> int:
    """The `seed` of a request to a server: of 63 bits, for vLLM takes -1 as no seed at all.

    A hash, so that a sample's noise is not another's under a neighbouring lease.
    """
    digest = hashlib.sha256(DOMAIN + seed.to_bytes(8, "big") + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class VllmNoise:
    """The noise that vLLM's V2 sampler adds: MurmurHash3 of seed, position and token id, as a float32 uniform."""

    def __init__(self, seed: int, vocab: int, position: int) -> None:
        self._state = _mix(_mix(_word(0), _word(seed)), _word(seed >> 32))
        self._tokens_V = np.arange(vocab, dtype=np.uint32)
        self._position = position

    def next(self) -> Words:
        """32 bits per token whose Gumbel noise is vLLM's, up to its rounding to float32."""
        return as_words(self.hashes())

    def hashes(self) -> _Uints:
        """The hash of each token at the next position, as vLLM computes it."""
        state = _mix(self._state, _word(self._position))
        self._position += 1
        return _finish(_mix(state, self._tokens_V) ^ _LENGTH)


def as_words(hashes: _Uints) -> Words:
    """The words whose Gumbel noise is that of vLLM's uniforms.

    A uniform is rounded to float32, and 1 - u is at least FLOOR where vLLM computes it: both decide noise far below
    the mean, and are followed. What is left is the rounding of its logarithms: 4e-4 at most, and 1e-5 above -2.
    """
    high, low = hashes >> np.uint32(16), hashes & np.uint32(0xFFFF)
    u = high.astype(np.float32) * np.float32(2**-16) + (low.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    rest = np.where(u < SERIES, 1.0 - u.astype(np.float64), np.maximum(np.float32(1.0) - u, FLOOR).astype(np.float64))
    return np.asarray((rest * TWO32).astype(np.uint32))


def _word(value: int) -> _Uints:
    """The low 32 bits, as an array: numpy warns of a scalar that wraps around."""
    return np.array([value & 0xFFFFFFFF], dtype=np.uint32)


def _rotate(value: _Uints, by: int) -> _Uints:
    return (value << np.uint32(by)) | (value >> np.uint32(32 - by))


def _mix(state: _Uints, key: _Uints) -> _Uints:
    return _rotate(state ^ (_rotate(key * _C1, 15) * _C2), 13) * _FIVE + _ADDED


def _finish(state: _Uints) -> _Uints:
    state = (state ^ (state >> np.uint32(16))) * _F1
    state = (state ^ (state >> np.uint32(13))) * _F2
    return np.asarray(state ^ (state >> np.uint32(16)))
