"""Spans: which version drew which tokens of a file, where a run lets answers go on with a newer version.

All answers of a file change versions at the same tokens, and these are few: a worker sees what it draws, so every place
at which it may change is a choice between two continuations. There are at most `PLACES` of them, at whole chunks of a
proof, so each chunk is of one version. What follows a change is computed by the newer version from the first token of
the prompt on: no key or value of the older one is left in its cache.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import RolloutError
from shoal.files import parse_json
from shoal.protocol.lease import Lease
from shoal.rollout_size import PROOF_TOKENS

# Places at which an answer of full length may change versions, at most.
PLACES = 16
ROOT = re.compile(r"[0-9a-f]{64}")


def span_tokens(max_new_tokens: int) -> int:
    """Tokens from one place at which versions may change to the next: whole chunks of a proof."""
    return PROOF_TOKENS * max(1, -(-max_new_tokens // (PLACES * PROOF_TOKENS)))


@dataclass(frozen=True, slots=True)
class Swap:
    """From token `first` on, all answers of a file are drawn by another version."""

    first: int
    version: int
    weights: str
    """Root hash of the version's content."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `first` .. `end` - 1 of every answer that is so long, and the version that drew them."""

    version: int
    weights: str
    first: int
    end: int | None
    """None where it goes on to the end of every answer."""


def spans_of(version: int, weights: str, swaps: Sequence[Swap]) -> list[Span]:
    """The spans of a file that began with a version and went on with others."""
    begun = [Swap(0, version, weights), *swaps]
    ends = [*(swap.first for swap in swaps), None]
    return [Span(swap.version, swap.weights, swap.first, end) for swap, end in zip(begun, ends, strict=True)]


def write_swaps(swaps: Sequence[Swap]) -> str:
    return json.dumps([[swap.first, swap.version, swap.weights] for swap in swaps])


def read_swaps(where: str, text: str) -> tuple[Swap, ...]:
    """Swaps as a file names them; a RolloutError if they are not even a list of such."""
    try:
        rows = parse_json(text)
        swaps = tuple(Swap(*row) for row in rows)
        if not isinstance(rows, list) or not all(map(_is_swap, swaps)):
            raise TypeError
    except (ValueError, TypeError, RecursionError) as error:
        raise RolloutError(f"{where}: its swaps {text!r:.80} are not a list of [FIRST, VERSION, ROOT]") from error
    return swaps


def _is_swap(swap: Swap) -> bool:
    whole = type(swap.first) is int and type(swap.version) is int
    return whole and isinstance(swap.weights, str) and ROOT.fullmatch(swap.weights) is not None


def check_swaps(where: str, swaps: Sequence[Swap], lease: Lease, every: int, max_new_tokens: int) -> None:
    """Holds a file's swaps to the run's rules; `every` is 0 where answers keep the version that they began with."""
    if swaps and not every:
        raise RolloutError(
            f"{where}: its answers go on with version {swaps[0].version}, and workers.in_flight is false: they keep "
            f"version {lease.version}, which the lease names"
        )
    first, version = 0, lease.version
    for swap in swaps:
        if swap.version <= version:
            raise RolloutError(f"{where}: version {swap.version} follows version {version}; only newer ones may")
        if swap.version > lease.step:
            raise RolloutError(
                f"{where}: goes on with version {swap.version}; for step {lease.step} versions "
                f"{lease.version}..{lease.step} are allowed"
            )
        if swap.first <= first:
            raise RolloutError(
                f"{where}: version {swap.version} begins at token {swap.first}, and version {version} at {first}: "
                "each must have tokens of its own"
            )
        if swap.first % every or swap.first >= max_new_tokens:
            raise RolloutError(
                f"{where}: versions change at token {swap.first}; they may at multiples of {every} "
                f"below {max_new_tokens}"
            )
        first, version = swap.first, swap.version


def check_used(where: str, swaps: Sequence[Swap], longest: int) -> None:
    """A file names no version that drew nothing in it: one that is named is fetched by everyone who judges the file."""
    if swaps and longest <= swaps[-1].first:
        raise RolloutError(
            f"{where}: version {swaps[-1].version} begins at token {swaps[-1].first}, and its longest answer has "
            f"{longest}: each version must have tokens of its own"
        )
