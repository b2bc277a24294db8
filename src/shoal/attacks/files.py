"""Malformed files: values out of bounds, other column types, decompression bombs, truncated Parquet."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.attacks.base import attack
from shoal.generate.submission_builder import Maker
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import tokens_of
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission


@attack
class OutOfBounds(Maker):
    """A token that the vocabulary does not have."""

    def make(self, lease: Lease, version: Version) -> Submission:
        honest = Maker.make(self, lease, version)
        first = honest.rollouts[0]
        beyond = replace(first, completion=tokens_of([self.policy.vocab, *first.completion[1:]]))
        return replace(honest, rollouts=[beyond, *honest.rollouts[1:]])


@attack
class NotANumber(Maker):
    """Log-probs that would turn the loss into NaN."""

    def make(self, lease: Lease, version: Version) -> Submission:
        honest = Maker.make(self, lease, version)
        return replace(honest, rollouts=[replace(r, logprobs=r.logprobs * np.nan) for r in honest.rollouts])


class _Rewritten(Maker):
    """An honest file with its table changed."""

    def change(self, table: Any) -> Any:
        raise NotImplementedError

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        submission, data = Maker.file(self, lease, version)
        return submission, rewritten(data, self.change)


def rewritten(data: bytes, change: Callable[[Any], Any], **options: Any) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    sink = io.BytesIO()
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), sink, compression="zstd", **options)
    return sink.getvalue()


def replaced(table: Any, name: str, column: Any) -> Any:
    # As our own schema has it: what is wrong with the file must be what the attack is about.
    place = table.schema.get_field_index(name)
    return table.set_column(place, pa.field(name, column.type, nullable=False), column)


@attack
class WrongTypes(_Rewritten):
    """Tokens as text."""

    def change(self, table: Any) -> Any:
        texts = [[str(token) for token in row] for row in table["completion"].to_pylist()]
        return replaced(table, "completion", pa.array(texts, pa.list_(pa.string())))


@attack
class NestedTypes(_Rewritten):
    """Lists in lists in lists."""

    def change(self, table: Any) -> Any:
        nested = [[[row]] for row in table["completion"].to_pylist()]
        return replaced(table, "completion", pa.array(nested))


@attack
class ParquetBomb(_Rewritten):
    """A few kilobytes that unfold to gigabytes: one token, repeated."""

    def change(self, table: Any) -> Any:
        share = (1 << 27) // len(table)
        values = pa.repeat(pa.scalar(7, pa.int32()), share * len(table))
        offsets = pa.array(range(0, share * len(table) + 1, share), pa.int32())
        return replaced(table, "completion", pa.ListArray.from_arrays(offsets, values))


@attack
class Truncated(Maker):
    """Half a file."""

    def file(self, lease: Lease, version: Version) -> tuple[Submission, bytes]:
        submission, data = Maker.file(self, lease, version)
        return submission, data[: len(data) // 2]
