"""Spans: which version drew which tokens of a file, where a run lets answers go on with a newer version.

A worker sees what it draws, so wherever it could change versions by itself it would choose between two continuations.
It cannot: in such a run an answer is drawn in spans, and what the next span is drawn with is asked for when the first
answer of the lease has come to its beginning. The coordinator then draws a beacon, which fixes the span's noise, and
notes it with the version that the worker asks with, once for all answers of the lease: nobody knows a continuation
before its version is fixed. Asking again gives the same, so a worker that was killed repeats its file. A file carries
these span leases, signed.

Spans end after whole chunks of a proof, so each chunk is of one version. What a span's version computes it computes
from the first token of the prompt on: no key or value of an older one is left in its cache.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from shoal.crypto.keys import Key
from shoal.crypto.signed import canonical, check_signed, message
from shoal.errors import RolloutError
from shoal.files import parse_json
from shoal.protocol.lease import Lease
from shoal.rollout_size import PROOF_TOKENS
from shoal.tasks.source import draw

# Spans of an answer of full length, at most: each is a request to the coordinator.
SPANS = 16
DOMAIN = "shoal span 1"
ROOT = re.compile(r"[0-9a-f]{64}")
MAX_BEACON = 1 << 64


def span_tokens(max_new_tokens: int) -> int:
    """Tokens of a span: whole chunks of a proof."""
    return PROOF_TOKENS * max(1, -(-max_new_tokens // (SPANS * PROOF_TOKENS)))


@dataclass(frozen=True, slots=True)
class SpanLease:
    """What the tokens from `first` on, to the next one, are drawn with in all answers of a file."""

    first: int
    version: int
    weights: str
    """Root hash of the version's content."""
    beacon: int
    signature: str = ""

    def seed(self, lease: Lease) -> int:
        """Key of the span's noise."""
        return draw("span", lease.seed, self.first, self.beacon)

    def signed(self, lease: Lease, key: Key) -> "SpanLease":
        return SpanLease(self.first, self.version, self.weights, self.beacon, key.sign(self._said(lease)))

    def check(self, lease: Lease, coordinator: str) -> None:
        """A RolloutError unless the coordinator gave it for this lease."""
        what = f"{lease}: the lease of its span from token {self.first} on"
        check_signed(self._said(lease), self.signature, coordinator, what, RolloutError)

    def _said(self, lease: Lease) -> bytes:
        span = {"first": self.first, "version": self.version, "weights": self.weights, "beacon": self.beacon}
        return message(DOMAIN, canonical({"lease": asdict(lease), "span": span}))


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `first` .. `end` - 1 of every answer that is so long, and the version that drew them."""

    version: int
    weights: str
    first: int
    end: int | None
    """None where it goes on to the end of every answer."""


def spans_of(version: int, weights: str, later: Sequence[SpanLease]) -> list[Span]:
    """What each version drew in a file that began with one and went on under these span leases."""
    begun = [(version, weights, 0), *((span.version, span.weights, span.first) for span in later)]
    firsts = [next(same) for _, same in groupby(begun, key=lambda one: one[:2])]
    ends = [*(first for _, _, first in firsts[1:]), None]
    return [Span(*one, end) for one, end in zip(firsts, ends, strict=True)]


def noise_of(lease: Lease, later: Sequence[SpanLease]) -> tuple[tuple[int, int], ...]:
    """Where the noise of later spans begins, and its key."""
    return tuple((span.first, span.seed(lease)) for span in later)


def write_span_leases(later: Sequence[SpanLease]) -> str:
    return json.dumps([[span.first, span.version, span.weights, span.beacon, span.signature] for span in later])


def read_span_leases(where: str, text: str) -> tuple[SpanLease, ...]:
    """Span leases as a file names them; a RolloutError if they are not even a list of such."""
    try:
        rows = parse_json(text)
        later = tuple(SpanLease(*row) for row in rows)
        if not isinstance(rows, list) or not all(map(_is_span_lease, later)):
            raise TypeError
    except (ValueError, TypeError, RecursionError) as error:
        form = "[FIRST, VERSION, ROOT, BEACON, SIGNATURE]"
        raise RolloutError(f"{where}: its spans {text!r:.80} are not a list of {form}") from error
    return later


def _is_span_lease(span: SpanLease) -> bool:
    whole = all(type(value) is int for value in (span.first, span.version, span.beacon))
    texts = isinstance(span.weights, str) and isinstance(span.signature, str)
    return whole and texts and 0 <= span.beacon < MAX_BEACON and ROOT.fullmatch(span.weights) is not None


def check_span_leases(where: str, later: Sequence[SpanLease], lease: Lease, every: int, max_new_tokens: int) -> None:
    """Holds a file's spans to the run's rules; `every` is 0 where answers keep the version that they began with."""
    if later and not every:
        raise RolloutError(
            f"{where}: its answers go on with version {later[0].version}, and workers.in_flight is false: they keep "
            f"version {lease.version}, which the lease names"
        )
    version = lease.version
    for number, span in enumerate(later, 1):
        if span.first != number * every or span.first >= max_new_tokens:
            raise RolloutError(
                f"{where}: span {number} begins at token {span.first}; spans have {every} tokens, and answers at most "
                f"{max_new_tokens}"
            )
        if span.version < version:
            raise RolloutError(f"{where}: version {span.version} follows version {version}; no older one may")
        if span.version > lease.step:
            raise RolloutError(
                f"{where}: goes on with version {span.version}; for step {lease.step} versions "
                f"{lease.version}..{lease.step} are allowed"
            )
        version = span.version


def check_all_named(where: str, later: Sequence[SpanLease], every: int, longest: int) -> None:
    """A file names the spans that its answers have, all of them and no others."""
    needed = (longest - 1) // every if every else 0
    if len(later) != needed:
        raise RolloutError(
            f"{where}: names {len(later)} spans after the first, and its longest answer, of {longest} tokens, has "
            f"{needed}"
        )


def no_spans(lease: Lease, first: int, version: int) -> SpanLease:
    """For runs in which answers keep the version that they began with."""
    raise RolloutError(f"{lease}: no span from token {first} on with version {version}: answers keep their version")
