"""What a packed row consists of: which stretches attend to themselves, and which of them to a prompt as well."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

# Samples of similar length are padded together; a bucket may spend at most this share of its rows on padding.
MAX_PADDING = 0.25

Index = npt.NDArray[np.int64]


class Stretch(NamedTuple):
    """Tokens begin .. end - 1 of a row."""

    begin: int
    end: int


class Family(NamedTuple):
    """A prompt and the answers that follow it and attend to it; none of them is empty."""

    prompt: Stretch
    each: tuple[Stretch, ...]

    @property
    def answers(self) -> Stretch:
        """All of the answers."""
        return Stretch(self.each[0].begin, self.each[-1].end)


@dataclass(frozen=True, slots=True)
class Segments:
    """A packed row: every prompt and every answer is a stretch that attends to itself causally."""

    own: tuple[Stretch, ...]
    """All of them that are not empty, in order: together they are the row."""
    shared: tuple[Family, ...]
    """Prompts with answers."""

    @property
    def tokens(self) -> int:
        return self.own[-1].end if self.own else 0


class Bucket(NamedTuple):
    """Stretches of similar length as rows of a table, which padding makes equally long."""

    members: list[int]
    index_SL: Index
    """Where each token stands in the packed row. A stretch is padded with copies of its last token: their scores are
    as bounded as its own."""
    real_SL: npt.NDArray[np.bool_]


def buckets(stretches: Sequence[Stretch]) -> Iterator[Bucket]:
    """Stretches in tables, longest first."""
    spans_N2 = np.array(stretches, dtype=np.int64).reshape(-1, 2)
    for members in similar((spans_N2[:, 1] - spans_N2[:, 0]).tolist()):
        begins_S1, ends_S1 = spans_N2[members, 0:1], spans_N2[members, 1:2]
        place_SL = begins_S1 + np.arange(int((ends_S1 - begins_S1).max()))
        yield Bucket(members, np.minimum(place_SL, ends_S1 - 1), place_SL < ends_S1)


def similar(lengths: Sequence[int]) -> list[list[int]]:
    """Samples in buckets, longest first, each bucket wasting at most MAX_PADDING of its rows."""
    buckets: list[list[int]] = []
    used = 0
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        n = lengths[sample]
        if buckets:
            bucket = buckets[-1]
            room = (len(bucket) + 1) * lengths[bucket[0]]
            if used + n >= (1 - MAX_PADDING) * room:
                bucket.append(sample)
                used += n
                continue
        buckets.append([sample])
        used = n
    return buckets


def order(tables: Sequence[Bucket], tokens: int) -> Index:
    """Which row of the flattened tables, one behind the other, holds each token of the packed row."""
    order_T = np.empty(tokens, dtype=np.int64)
    offset = 0
    for table in tables:
        real_N = table.real_SL.ravel()
        order_T[table.index_SL.ravel()[real_N]] = offset + np.flatnonzero(real_N)
        offset += real_N.size
    return order_T


def gather(x_THD: Tensor, index_SL: Tensor) -> Tensor:
    """Stretches of a row as a batch, heads first."""
    return x_THD.index_select(0, index_SL.flatten()).view(*index_SL.shape, *x_THD.shape[1:]).transpose(1, 2)


def on_device(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)


def tokens_first(q_HTD: Tensor, k_hTD: Tensor, v_hTD: Tensor, multiple: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as tokens x heads x head size, of one head size that is a multiple of `multiple`.

    Zeros behind a head change nothing, and kernels want values as wide as keys.
    """
    wide = -(-max(q_HTD.shape[-1], v_hTD.shape[-1]) // multiple) * multiple
    q, k, v = (F.pad(x, (0, wide - x.shape[-1])).transpose(0, 1).contiguous() for x in (q_HTD, k_hTD, v_hTD))
    return q, k, v


def for_each_query_head(q_HTD: Tensor, x_hTD: Tensor) -> Tensor:
    """Keys or values with a copy for each of the query heads that share them."""
    repeats = q_HTD.shape[0] // x_hTD.shape[0]
    return x_hTD.repeat_interleave(repeats, 0) if repeats > 1 else x_hTD
