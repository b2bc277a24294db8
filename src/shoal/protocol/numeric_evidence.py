"""Numeric evidence as it travels with a verdict, and what it means in words.

In bfloat16 runs a file's numbers are weighed against how honest machines round, in nats: at most one honest file in e^x
has more than x nats against it. What is against a node adds up over its life.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

# What the first word of a bet's name says about the file; `shift` is followed by the other computation.
MEANINGS = {
    "gaps": "log-probs are further off than rounding explains",
    "chunks": "proofs of hidden states are further off than rounding explains",
    "shortfalls": "tokens are not those that the lease's noise picks",
    "edits": "single tokens are so far from what the lease's noise picks that rounding does not explain them",
    "tilt": "tokens are more or less likely than draws from the distribution are",
    "unlikely": "unlikely tokens are more or fewer than among draws from the distribution",
    "ends": "answers end where ending is unlikely, more often than draws from the distribution do",
}


@dataclass(frozen=True, slots=True)
class NumericEvidence:
    """What is known against a file and its node by the numbers."""

    nats: float
    """Against the file."""
    tokens: int
    """That were computed again; of a file that was only sampled, some."""
    strongest: str
    """The bet that won most on the file."""
    node_nats: float
    """Against the node, over all files that were weighed, this one among them."""
    node_files: int
    limit: float
    """From so much on a node is banned."""
    rates: int | None = None
    """Version of the honest rates that it was weighed by; None if that is not said."""

    @classmethod
    def read(cls, tree: Any) -> Self | None:
        """Out of a stranger's JSON; None for anything else."""
        names = ("nats", "tokens", "node_nats", "node_files", "limit")
        if not isinstance(tree, Mapping) or not isinstance(strongest := tree.get("strongest"), str):
            return None
        try:
            nats, tokens, node_nats, node_files, limit = (float(tree[name]) for name in names)
            return cls(nats, int(tokens), strongest, node_nats, int(node_files), limit)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def __str__(self) -> str:
        if self.nats <= 0:
            return f"nothing against the file in {self.tokens:,} tokens ({self.nats:.1f} nats)"
        return f"{self.nats:.1f} nats of evidence in {self.tokens:,} tokens: {meaning(self.strongest)}"


def meaning(bet: str) -> str:
    """What it says of a file that a bet won most."""
    kind, _, rest = bet.partition(" ")
    if kind == "shift":
        return f"log-probs are off as they would be with this: {rest}"
    return MEANINGS.get(kind, bet)


def standing(nats: float, files: int, limit: float) -> str:
    """What is against a node, as in: evidence 3.1 of 13.8 nats in 41 files."""
    # Less than nothing speaks for the node: its files are closer to a float32 computation than honest ones must be.
    return f"evidence {max(0.0, nats):.1f} of {limit:.1f} nats in {files:,} file{'' if files == 1 else 's'}"
