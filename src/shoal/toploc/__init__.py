"""Proofs that a model's last hidden states were computed: 258 bytes for every 32 tokens, checked by one prefill.

The bytes are those of the published package `toploc` 0.1.6, built with prefill skipped:

    from shoal import toploc

    proofs = toploc.build(states)             # the worker: [tokens, hidden], bf16
    results = toploc.verify(own, proofs)      # the validator, on states of its own
    toploc.accepts(results)                   # against thresholds, by default the published ones

Usable on its own: numpy and numba do the work, torch is never imported by it.
"""

from shoal.errors import ToplocError
from shoal.toploc.format import PRIME, Proof, decode, encode, proof_size
from shoal.toploc.proofs import build, build_from_top, verify
from shoal.toploc.verdict import ChunkResult, Thresholds, accepts, refusal

__all__ = [
    "PRIME",
    "ChunkResult",
    "Proof",
    "Thresholds",
    "ToplocError",
    "accepts",
    "build",
    "build_from_top",
    "decode",
    "encode",
    "proof_size",
    "refusal",
    "verify",
]
