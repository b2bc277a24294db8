"""Layout of safetensors files: where tensors are, and which bytes of a new file correspond to which of its base.

Both sides of a delta work this out from the two headers, so a delta need not say it. Neighbours that are neighbours in
both files are taken together: with one layout in both, all of it is a single span.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shoal.errors import DeltaError
from shoal.files import parse_json

LENGTH = 8
# A header of a hundred thousand tensors has about 12 MB.
MAX_HEADER = 1 << 25
BF16 = "BF16"
# Far above what any model has; the product of a million dimensions would take for ever.
MAX_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """`begin` and `end` count from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A file's header as it stands there, its length included, and its tensors in the order of their bytes."""

    header: bytes
    tensors: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        return max((tensor.end for tensor in self.tensors.values()), default=len(self.header))


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of the new file in a row. `base` is where they were in the base, None if it does not have them."""

    size: int
    base: int | None
    steps: bool
    """Whether they are bf16 values in both."""


def header_size(start: bytes, origin: str) -> int:
    """The size of a header with its length, from the first bytes of the file."""
    size = LENGTH + int.from_bytes(start[:LENGTH], "little")
    if len(start) < LENGTH or size > MAX_HEADER:
        raise DeltaError(
            f"{origin}: not a safetensors file: its header would take {size:,} bytes, up to {MAX_HEADER:,} may"
        )
    return size


def parse(header: bytes, origin: str) -> Layout:
    """The layout that a header describes; DeltaError unless its tensors follow each other without holes."""
    try:
        tree = parse_json(header[LENGTH:])
        if not isinstance(tree, dict):
            raise ValueError("its header is not a table")
        tree.pop("__metadata__", None)
        tensors = {str(name): _tensor(facts, len(header)) for name, facts in tree.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DeltaError(f"{origin}: not a safetensors file: {str(error)[:200] or type(error).__name__}") from error
    at = len(header)
    in_order = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    for name, tensor in in_order.items():
        if tensor.begin != at:
            raise DeltaError(
                f"{origin}: not a safetensors file: {name[:80]} is at byte {tensor.begin}, expected at {at}"
            )
        at = tensor.end
    return Layout(header, in_order)


def _tensor(facts: Mapping[str, Any], start: int) -> Tensor:
    begin, end = facts["data_offsets"]
    dtype, shape = facts["dtype"], tuple(facts["shape"])
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 1 << 62 for n in (begin, end, *shape)):
        raise ValueError("a tensor's dtype, shape or offsets are not what they should be")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor has {len(shape)} dimensions, up to {MAX_DIMENSIONS} may be")
    if end < begin or (dtype == BF16 and end - begin != 2 * prod(shape)):
        raise ValueError("a tensor's offsets do not fit its shape")
    return Tensor(dtype, shape, start + begin, start + end)


def spans(base: Layout, new: Layout) -> list[Span]:
    """The new file after its header. A tensor follows from the one of its name if dtype and shape are the same."""
    found: list[Span] = []
    for name, tensor in new.tensors.items():
        size = tensor.end - tensor.begin
        old = base.tensors.get(name)
        paired = old is not None and (old.dtype, old.shape, old.end - old.begin) == (tensor.dtype, tensor.shape, size)
        span = Span(size, old.begin if old and paired else None, paired and tensor.dtype == BF16)
        if found and _continues(found[-1], span):
            found[-1] = Span(found[-1].size + size, found[-1].base, span.steps)
        elif size:
            found.append(span)
    return found


def _continues(last: Span, span: Span) -> bool:
    if last.base is None or span.base is None:
        return last.base is span.base
    return last.steps == span.steps and last.base + last.size == span.base
