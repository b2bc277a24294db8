"""Merkle trees over keccak-256, the same as the contract computes.

A leaf has five words and a pair two, so neither can pass for the other. A node without a neighbour moves up as it is.
"""

from collections.abc import Sequence

from Crypto.Hash import keccak

Word = int | bytes | str
"""A number, 32 bytes, or hexadecimal digits of at most 32 bytes, such as an address or a hash."""


def keccak_words(*words: Word) -> bytes:
    """Keccak-256 of the words, each filled up to 32 bytes from the left."""
    return keccak.new(digest_bits=256, data=b"".join(_word(word) for word in words)).digest()


def keccak_text(text: str) -> bytes:
    return keccak.new(digest_bits=256, data=text.encode()).digest()


def _word(word: Word) -> bytes:
    if isinstance(word, int):
        return word.to_bytes(32, "big")
    raw = word if isinstance(word, bytes) else bytes.fromhex(word.removeprefix("0x"))
    return raw.rjust(32, b"\0")


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The root over hashes of leaves; 32 zero bytes over none."""
    level = list(leaves)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else bytes(32)


def merkle_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The neighbours on the way from a leaf to the root."""
    level, proof = list(leaves), []
    while len(level) > 1:
        if (neighbour := index ^ 1) < len(level):
            proof.append(level[neighbour])
        level, index = _above(level), index // 2
    return proof


def _above(level: Sequence[bytes]) -> list[bytes]:
    pairs = [keccak_words(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return pairs + list(level[len(level) - len(level) % 2 :])
